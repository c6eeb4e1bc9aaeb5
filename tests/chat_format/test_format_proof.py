"""A chat that is put together turn by turn has the tokens of the template's own rendering, or the template is not used.

The rendering is plain jinja2's (``oracle.py``), the tokens are llama.cpp's in a vocabulary in which every marker is one token.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.chat_format.chats import ALL_CHATS, PLAIN_CHATS, Kind
from tests.chat_format.checking import (
    SETTINGS,
    Outcome,
    Result,
    Setting,
    check_in,
    check_template,
    vocabulary_of,
    written,
)
from tests.chat_format.oracle import Oracle
from tests.chat_format.product import Source, product_claims, product_lead, product_pieces
from tests.chat_format.readings import AnswerRules, Place
from tests.chat_format.template_parts import (
    Bos,
    Closing,
    Default,
    MidChat,
    Parts,
    Prompt,
    Reasoning,
    System,
    Trim,
)

BYTES, WITH_BOS, MERGING = SETTINGS

# What is combined with what in the templates of real models, each way once.
INST = Parts(closing=Closing.INST, prompt=Prompt.NONE, alternates=True, mid_chat=MidChat.REFUSED, spaced=False)
THINKER = Parts(reasoning=Reasoning.STRIPPED_EARLIER, prompt=Prompt.THINKS)
DEEPSEEK = Parts(
    system=System.BARE, mid_chat=MidChat.MOVED, closing=Closing.ANSWERS_ONLY, prompt=Prompt.THINKS, spaced=False
)
COMBINATIONS = {
    "ChatML": Parts(bos=Bos.NONE),
    "ChatML, fixed default (Qwen 2.5, MiMo)": Parts(bos=Bos.NONE, default=Default.FIXED),
    "default closed otherwise (Kimi K2)": Parts(bos=Bos.NONE, default=Default.SPACED),
    "dated default (Granite 3.3)": Parts(bos=Bos.NONE, default=Default.DATED),
    "empty default (Nemotron 3)": replace(THINKER, bos=Bos.NONE, default=Default.EMPTY, prompt=Prompt.OTHER),
    "marker in the default (SmolLM3)": Parts(
        Bos.NONE, default=Default.MARKED, mid_chat=MidChat.DROPPED, trim=Trim.SYSTEM_RIGHT, generation_tag=True
    ),
    "text behind a text (Llama 3.1)": Parts(system=System.BEHIND_TEXT, trim=Trim.ALL, spaced=False),
    "text behind a date (Llama 3.2)": Parts(system=System.BEHIND_TEXT, default=Default.DATED, trim=Trim.ALL),
    "text behind a date, moved (Solar)": Parts(
        Bos.NONE, System.BEHIND_TEXT, Default.DATED, MidChat.MOVED, prompt=Prompt.SHORTER
    ),
    "text behind a text, prompt always (Command R7B)": Parts(system=System.BEHIND_TEXT, prompt=Prompt.ALWAYS),
    "text behind a text, other history (Spark)": Parts(system=System.BEHIND_TEXT, prompt=Prompt.OTHER),
    "text behind a text, closed late (Apriel 1.6)": Parts(system=System.BEHIND_TEXT, closing=Closing.LATE),
    "text before a text (Ling)": Parts(Bos.NONE, System.BEFORE_TEXT, prompt=Prompt.SHORTER),
    "text before a block (Apertus)": Parts(
        system=System.BEFORE_BLOCK,
        default=Default.DATED,
        mid_chat=MidChat.REFUSED,
        closing=Closing.LAST_NOT,
        spaced=False,
    ),
    "turn behind a block (GigaChat, Kimi K3)": Parts(system=System.BEHIND_BLOCK),
    "turn behind a dated block (gpt-oss)": Parts(
        Bos.NONE,
        System.BEHIND_BLOCK,
        Default.DATED,
        MidChat.DROPPED,
        Closing.LAST_OTHERWISE,
        prompt=Prompt.SHORTER,
        spaced=False,
    ),
    "turn behind a block, tools looped over (Hermes)": Parts(system=System.BEHIND_BLOCK, loops_over_tools=True),
    "bare text (DeepSeek R1)": replace(DEEPSEEK, reasoning=Reasoning.STRIPPED),
    "bare text, thoughts closed (DeepSeek V3.2)": replace(DEEPSEEK, prompt=Prompt.OTHER),
    "bare text, questions merged (DeepSeek V4)": replace(DEEPSEEK, prompt=Prompt.ALIKE, merges_questions=True),
    "bare text, last answer open (Hunyuan)": replace(DEEPSEEK, prompt=Prompt.ALIKE, closing=Closing.LAST_NOT),
    "no closings (GLM 4.6)": Parts(Bos.NONE, closing=Closing.NOTHING, trim=Trim.ANSWERS_LEFT, prompt=Prompt.ALIKE),
    "no closings, other history (GLM 4.7)": Parts(Bos.NONE, closing=Closing.NOTHING, prompt=Prompt.OTHER, spaced=False),
    "refused, alternating (Gemma 2)": Parts(
        system=System.REFUSED, mid_chat=MidChat.REFUSED, trim=Trim.ALL, alternates=True
    ),
    "trimmed, thoughts closed in the prompt (Gemma 4)": Parts(trim=Trim.ALL, prompt=Prompt.THOUGHT),
    "last question (Mistral Nemo)": replace(INST, system=System.LAST_QUESTION),
    "first question, BOS each time (Llama 2)": replace(INST, bos=Bos.EACH_QUESTION, system=System.FIRST_QUESTION),
    "dated default, alternating (Mistral Small)": replace(INST, default=Default.DATED),
    "marker in the default, alternating (Ministral)": replace(INST, default=Default.MARKED),
    "marker in the default (Devstral)": replace(INST, default=Default.MARKED, mid_chat=MidChat.TURN, alternates=False),
    "EOS at the end (Phi 3)": Parts(Bos.NONE, closing=Closing.EOS_AT_END),
    "generation tag, thoughts stripped (LFM 2.5)": Parts(reasoning=Reasoning.STRIPPED_EARLIER, generation_tag=True),
    "generation tag, other opening mid-chat (Laguna)": Parts(mid_chat=MidChat.OTHER_OPENING, generation_tag=True),
    "thoughts opened (StepFun)": THINKER,
    "thoughts opened, one system text (Qwen 3.5)": replace(
        THINKER, bos=Bos.NONE, trim=Trim.ALL, mid_chat=MidChat.REFUSED
    ),
    "thoughts opened, default (MiniMax M2)": replace(THINKER, default=Default.FIXED, mid_chat=MidChat.DROPPED),
    "thoughts closed in the prompt, stripped (QwQ)": Parts(
        Bos.NONE, prompt=Prompt.THOUGHT, reasoning=Reasoning.STRIPPED_EARLIER
    ),
    "trimmed on the left (Bielik)": Parts(mid_chat=MidChat.DROPPED, trim=Trim.ANSWERS_LEFT),
    "moved, stripped (RWKV)": Parts(mid_chat=MidChat.MOVED, trim=Trim.QUESTIONS, reasoning=Reasoning.STRIPPED),
    "BOS behind a line feed": Parts(bos=Bos.LATER),
    "dropped": Parts(system=System.DROPPED, mid_chat=MidChat.DROPPED),
}

IN_A_QUESTION = ("refused, alternating (Gemma 2)", "dropped", "last question (Mistral Nemo)")

# Whole templates, for what the parts cannot say.
WRITTEN_OUT = {
    "the header opens the first question": (
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ '<|system|>' + messages[0].content }}"
        "{% else %}{{ '<|system|>You help.' }}{% endif %}{{ '<|tools|>none<|user|>' }}{% for m in messages %}"
        "{% if m.role == 'user' %}{{ '' if loop.first or messages[loop.index0 - 1].role != 'assistant' else '<|end|><|user|>' }}"
        "{{ m.content }}{% elif m.role == 'assistant' %}{{ '<|assistant|>' + m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    ),
    "the default goes once any system text is there": (
        "{% if messages | selectattr('role', 'eq', 'system') | list %}{% else %}{{ '<|system|>You help.<|end|>' }}{% endif %}"
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    ),
    "an empty system text is another chat than none": (
        "{% if messages[0].role == 'system' %}{% if messages[0].content %}{{ '<|system|>' + messages[0].content + '<|end|>' }}"
        "{% endif %}{% else %}{{ '<|system|>You help.<|end|>' }}{% endif %}{% for m in messages if m.role != 'system' %}"
        "{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    ),
    "roles are words of the text": (
        "{% for m in messages %}{{ {'user': 'User', 'assistant': 'Assistant', 'system': 'System'}[m.role] + ': ' + m.content "
        "+ '\n\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
    ),
    "an order in front of each prompt": (
        "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|system|>Answer in JSON.<|end|><|assistant|>' }}{% endif %}"
    ),
    "each turn opens with BOS": (
        "{% for m in messages %}{{ bos_token + m.role + '\n' + m.content + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ bos_token + 'assistant\n' }}{% endif %}"
    ),
}
TEMPLATES = {name: parts.template() for name, parts in COMBINATIONS.items()} | WRITTEN_OUT

NOT_IN_TURNS = {
    "turns that are numbered": "{% for m in messages %}{{ '<|turn|>' ~ loop.length ~ m.role ~ ':' ~ m.content }}{% endfor %}",
    "texts in capitals": "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content | upper }}{% endfor %}",
    "turns backwards": "{% for m in messages | reverse %}{{ '<|' ~ m.role ~ '|>' ~ m.content ~ '<|end|>' }}{% endfor %}",
    "the last turn only": "{{ '<|' ~ messages[-1].role ~ '|>' ~ messages[-1].content ~ '<|end|>' }}",
    "texts twice": "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content ~ m.content ~ '<|end|>' }}{% endfor %}",
    "lengths of texts": "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content | length ~ ':' ~ m.content }}{% endfor %}",
    "the question in front": "{{ '<|about|>' ~ messages[-1].content }}"
    "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content }}{% endfor %}",
    "words of a text": "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' }}{{ m.content.split() | join('<|gap|>') }}{% endfor %}",
}


def told(result: Result) -> str:
    return "\n".join([result.outcome.value, result.reason, *map(str, result.differences[:6])])


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_combination_of_real_templates_is_used_token_for_token(name: str) -> None:
    result = check_template(TEMPLATES[name], PLAIN_CHATS)
    assert result.outcome in {Outcome.EXACT, Outcome.PLACED}, told(result)


@pytest.mark.parametrize("name", ["ChatML", "text behind a text (Llama 3.1)", "no closings (GLM 4.6)"])
def test_texts_merge_with_their_turns_as_in_the_rendering(name: str) -> None:
    result = check_template(TEMPLATES[name], ALL_CHATS, [MERGING])
    assert result.outcome is Outcome.EXACT, told(result)


@pytest.mark.parametrize("name", IN_A_QUESTION)
def test_a_system_text_without_a_turn_stands_in_the_first_question(name: str) -> None:
    result = check_template(TEMPLATES[name], PLAIN_CHATS, [BYTES])
    assert result.outcome is Outcome.PLACED, told(result)
    assert Place.FIRST_QUESTION in result.places


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_system_text_and_no_skill_gets_lost(name: str) -> None:
    template = TEMPLATES[name]
    vocabulary = vocabulary_of(template, WITH_BOS)
    if product_claims(template, vocabulary).source is Source.PLAIN:
        pytest.fail("the template is not used")
    for chat in PLAIN_CHATS:
        rules = AnswerRules(Oracle(template, vocabulary.bos, vocabulary.eos))
        read = vocabulary.detokenize(product_pieces(template, vocabulary, written(rules, chat)))
        assert not [turn.text for turn in chat.turns if read.count(turn.text) != 1]


@pytest.mark.parametrize("setting", SETTINGS[:2], ids=["a model that adds no BOS", "a model that adds BOS"])
@pytest.mark.parametrize("bos", [Bos.FIRST, Bos.LATER])
@pytest.mark.parametrize("default", [Default.NONE, Default.EMPTY, Default.FIXED])
def test_a_chat_has_the_one_bos_that_the_template_writes(setting: Setting, bos: Bos, default: Default) -> None:
    template = Parts(bos=bos, default=default).template()
    vocabulary = vocabulary_of(template, setting)
    (mark,) = vocabulary.tokenize(vocabulary.bos, special=True)
    counts = {
        chat.name: product_pieces(template, vocabulary, chat).count(mark)
        for chat in PLAIN_CHATS
        if all(turn.reasoning is None for turn in chat.turns)
    }
    assert set(counts.values()) == {1}, counts


@pytest.mark.parametrize("name", TEMPLATES)
def test_markers_in_texts_stay_text(name: str) -> None:
    template = TEMPLATES[name]
    vocabulary = vocabulary_of(template, BYTES)
    marks = {vocabulary.tokenize(marker, special=True)[0] for marker in vocabulary.made_of.markers}
    for chat in PLAIN_CHATS:
        if any(turn.kind is Kind.ANSWER for turn in chat.turns):
            continue
        forged = replace(
            chat,
            turns=tuple(replace(turn, text=turn.text + "".join(vocabulary.made_of.markers)) for turn in chat.turns),
        )
        read = Counter(token for token in product_pieces(template, vocabulary, forged) if token in marks)
        plain = Counter(token for token in product_pieces(template, vocabulary, chat) if token in marks)
        assert read == plain, chat.name


@pytest.mark.parametrize("name", NOT_IN_TURNS)
def test_a_template_that_cannot_be_put_together_from_turns_is_refused(name: str) -> None:
    template = NOT_IN_TURNS[name]
    for setting in SETTINGS:
        vocabulary = vocabulary_of(template, setting)
        claims = product_claims(template, vocabulary)
        assert claims.source is Source.PLAIN
        assert claims.problem


@pytest.mark.parametrize("name", [name for name in COMBINATIONS if COMBINATIONS[name].default is Default.DATED])
def test_the_date_is_in_chats_but_not_in_what_skills_are_compiled_behind(name: str) -> None:
    template = TEMPLATES[name]
    vocabulary = vocabulary_of(template, BYTES)
    today = f"{Oracle(template, vocabulary.bos, vocabulary.eos).now:%d %b %Y}"
    assert today in vocabulary.detokenize(product_pieces(template, vocabulary, PLAIN_CHATS[0]))
    assert today not in vocabulary.detokenize(product_lead(template, vocabulary))


PARTS = st.builds(
    Parts,
    *map(st.sampled_from, (Bos, System, Default, MidChat, Closing, Trim, Prompt, Reasoning)),
    *[st.booleans()] * 5,
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(parts=PARTS, setting=st.sampled_from(SETTINGS))
def test_a_format_that_is_used_is_the_rendering_of_any_template(parts: Parts, setting: Setting) -> None:
    result = check_template(parts.template(), PLAIN_CHATS, [setting])
    assert result.outcome is not Outcome.WRONG, told(result)
    assert result.outcome is not Outcome.PLAIN or result.reason


EDGE = st.text("a7 \n\t\r.:汉🙂é-", max_size=4)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), name=st.sampled_from(sorted(TEMPLATES)), setting=st.sampled_from(SETTINGS))
def test_whatever_texts_begin_and_end_with_they_are_read_as_rendered(
    data: st.DataObject, name: str, setting: Setting
) -> None:
    template = TEMPLATES[name]

    chat = data.draw(st.sampled_from(PLAIN_CHATS)).with_texts(lambda text: data.draw(EDGE) + text + data.draw(EDGE))
    vocabulary = vocabulary_of(template, setting)
    result = check_in(template, vocabulary, [chat])
    assert result.outcome in {Outcome.EXACT, Outcome.PLACED}, told(result)
