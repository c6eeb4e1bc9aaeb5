"""What a model thinks is told from what it says, in every form that templates have, and leaves the cache as in their history."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvnotes_local.contract.generation import Generation, Sampling, StopReason, TokenEvent
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.notebook.listening import SaidText
from kvnotes_local.notebook.notebook import Notebook
from tests.chat_format.oracle import Message, Oracle
from tests.chat_format.templated_model import templated_model

HARMONY = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% if m.thinking is defined and loop.last %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + ('<|return|>' if loop.last else '<|end|>') }}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
OPENED = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% if m.role == 'assistant' %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}{{ '<|finis|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}"
)
EMPTIED = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% if m.role == 'assistant' %}"
    "{{ '<think>' + (m.reasoning_content if m.reasoning_content is defined and loop.last else '') + '</think>' + m.content }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CLOSED = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ '</think>' if m.role == 'assistant' }}{{ m.content + '<|finis|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|><think></think>' }}{% endif %}"
)
FORMS = {
    "harmony": (
        HARMONY,
        "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|message|>It is\r\n five. 🙂",
        "Let me see.",
    ),
    "opened by the prompt": (OPENED, "Let me see.\n</think>\n\nIt is\r\n five. 🙂", "Let me see."),
    "emptied in the history": (EMPTIED, "<think>Let me see.</think>It is\r\n five. 🙂", "Let me see."),
    "closed by the prompt": (CLOSED, "It is\r\n five. 🙂", ""),
    "harmony without thoughts": (HARMONY, "<|channel|>final<|message|>It is\r\n five. 🙂", ""),
}
SAID = "It is\r\n five. 🙂"


@pytest.mark.parametrize("form", FORMS)
def test_thoughts_are_kept_apart_and_leave_with_the_next_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    template, written, thought = FORMS[form]
    path = templated_model(tmp_path / "tiny.gguf", template)
    with LlamaEngine(path, EngineParams(n_ctx=1024, n_threads=1), cache_dir=tmp_path) as engine:

        def generate(seq: int, sampling: Sampling, max_tokens: int) -> Generation:
            generation = Generation()

            def events():  # type: ignore[no-untyped-def]
                shown = ""
                for token in engine.tokenize(written, special=True):
                    generation.tokens.append(token)
                    text = engine.detokenize(generation.tokens).rstrip("\ufffd")  # half a character comes with its end
                    piece, shown = text[len(shown) :], text
                    yield TokenEvent(token, piece)
                generation.stop_reason = StopReason.END

            generation.events = events()
            return generation

        monkeypatch.setattr(engine, "generate", generate)  # stands in for the model's free will only
        notebook = Notebook(engine)
        said: list[str] = []
        thinking: list[None] = []
        show = SaidText(engine.info.chat_format, said.append, lambda: thinking.append(None))
        reply = notebook.ask("How many?", on_text=show)
        assert "".join(said) == SAID
        assert bool(thinking) is bool(thought)
        assert reply.segment.reasoning == thought
        assert reply.text == SAID
        notebook.ask("Why?")
        asked = sum(segment.n_tokens for segment in notebook.segments[:-1])
        history = (Message("user", "How many?"), Message("assistant", SAID), Message("user", "Why?"))
        rendered = Oracle(template, "<s>", "</s>").render(*history)
        text = engine.detokenize(notebook.tokens[:asked]).removeprefix("<s>")
        assert text == rendered
        notebook.check()
