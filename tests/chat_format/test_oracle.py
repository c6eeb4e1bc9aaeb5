"""The oracle renders as Hugging Face does, and knows where a text may go that a template does not take."""

from __future__ import annotations

import pytest

from tests.chat_format.chats import Chat, chat
from tests.chat_format.markers import marked_vocabulary
from tests.chat_format.oracle import Call, Message, Oracle
from tests.chat_format.readings import AnswerRules, NoReading, Place, readings
from tests.zoo.vocabulary_model import load_vocabulary

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ALTERNATING = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('no') }}"
    "{% endif %}{{ '[INST]' + m.content + '[/INST]' if m.role == 'user' else m.content + eos_token }}{% endfor %}"
)


def texts(template: str, of: Chat) -> dict[str, set[Place]]:
    return {one.text: set(one.places) for one in readings(Oracle(template, "<s>", "</s>"), of)}


@pytest.mark.parametrize(
    ("template", "call", "text"),
    [
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", Call.HUGGING_FACE, "A & B"),
        ("{% for tool in tools %}{% endfor %}{{ messages[0].content }}", Call.UNDEFINED, "A & B"),
        ("{{ 1 if tools is none }}{{ messages[0].content }}", Call.HUGGING_FACE, "1A & B"),
        ("{% for part in messages[0].content %}{{ part.text + '.' }}{% endfor %}", Call.PARTS, "A & B."),
        (
            "{% for m in messages %}\n  {% if m %}\n{{ m.content | tojson }}\n{% endif %}{% break %}{% endfor %}",
            Call.HUGGING_FACE,
            '"A & B"\n',
        ),
    ],
)
def test_a_template_is_called_as_it_was_written_for(template: str, call: Call, text: str) -> None:
    oracle = Oracle(template, "<s>", "</s>")
    assert oracle.call is call
    assert oracle.render(Message("user", "A & B")) == text


def test_a_chat_that_the_template_takes_is_read_as_it_is() -> None:
    assert texts(CHATML, chat("", "su")) == {
        "<|im_start|>system\nQsazx kept<|im_end|>\n<|im_start|>user\nQuazx kept<|im_end|>\n<|im_start|>assistant\n": {
            Place.SYSTEM_TURN
        }
    }


def test_a_skill_may_be_a_turn_of_the_user_where_it_could_be_a_system_turn() -> None:
    assert list(texts(CHATML, chat("", "uaku")).values()) == [
        {Place.SKILL_AS_SYSTEM},
        {Place.SKILL_AS_USER},
        {Place.SKILL_ACKNOWLEDGED},
    ]


def test_texts_without_a_turn_go_into_the_first_question_or_get_a_short_answer() -> None:
    assert texts(ALTERNATING, chat("", "suaku")) == {
        "<s>[INST]Qsazx kept\n\nQuazx kept[/INST]Qaazx kept</s>[INST]Qkazx kept[/INST]Understood.</s>"
        "[INST]Qubzx kept[/INST]": {Place.FIRST_QUESTION, Place.SKILL_ACKNOWLEDGED}
    }


def test_a_template_that_shows_no_texts_has_no_reading() -> None:
    with pytest.raises(NoReading):
        texts("{{ bos_token }}", chat("", "u"))


@pytest.mark.parametrize(
    ("prompt", "opening", "written"),
    [
        ("<|a|>", "<|a|>", "Qwazx kept"),
        ("<|a|>", "<|a|><|final|>", "<|final|>Qwazx kept"),
        ("<|a|><think>", "<|a|>", "Qwazx kept"),
    ],
)
def test_what_the_model_writes_begins_where_the_prompt_ends(prompt: str, opening: str, written: str) -> None:
    template = (
        f"{{% for m in messages %}}{{{{ ('<|u|>' if m.role == 'user' else '{opening}') + m.content + '<|end|>' }}}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{prompt}{{% endif %}}"
    )
    answered = chat("", "uwu")
    assert AnswerRules(Oracle(template, "<s>", "</s>")).written(answered.turns[1]) == written
    assert set(texts(template, answered)) == {
        f"<|u|>Quazx kept<|end|>{prompt}{written}<|end|><|u|>Qubzx kept<|end|>{prompt}",
        f"<|u|>Quazx kept<|end|>{opening}Qwazx kept<|end|><|u|>Qubzx kept<|end|>{prompt}",  # the template's history
    }


def test_every_marker_of_a_template_is_one_token() -> None:
    template = CHATML + "{# <｜User｜> [INST] <turn|> ]~b] 〈|EOS|〉 <think> </think> #}{{ '<|' + 'put' + '|>' }}"
    vocabulary = load_vocabulary(marked_vocabulary(template))
    markers = (
        "<|im_start|>",
        "<|im_end|>",
        "<｜User｜>",
        "[INST]",
        "<turn|>",
        "]~b]",
        "〈|EOS|〉",
        "<think>",
        "</think>",
        "<|put|>",
    )
    assert [len(vocabulary.tokenize(marker, special=True)) for marker in markers] == [1] * len(markers)
    assert all(len(vocabulary.tokenize(marker)) > 1 for marker in markers)
    assert (
        vocabulary.detokenize(vocabulary.tokenize(" a\n\n<think> 汉🙂\r\n", special=True)) == " a\n\n<think> 汉🙂\r\n"
    )
