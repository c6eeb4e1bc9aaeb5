"""What models write around their answers: thoughts, channels and ends leave the cache as the template's history has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvnotes_local.contract.generation import Generation, Sampling, StopReason, TokenEvent
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.notebook.notebook import Notebook
from tests.chat_format.oracle import Message, Oracle
from tests.chat_format.templated_model import templated_model

HARMONY = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m['content'] + ('<|return|>' if loop.last else '<|end|>') }}"
    "{% else %}{{ '<|start|>' + m['role'] + '<|message|>' + m['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
HARMONY_THINKS = HARMONY.replace(
    "{{ '<|start|>assistant<|channel|>final",
    "{% if m.thinking and loop.last %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}"
    "{% endif %}{{ '<|start|>assistant<|channel|>final",
)


def chatml(answer: str, prompt: str) -> str:
    """Turns like ChatML's; ``answer``: an expression for a finished answer's text."""
    return (
        "{% for m in messages %}{% set said = m.content.split('</think>')[-1].lstrip('\\n') %}"
        "{{ '<|im_start|>' + m.role + '\\n' + ("
        + answer
        + " if m.role == 'assistant' else m.content) + '<|im_end|>\\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n"
        + prompt
        + "' }}{% endif %}<think></think>"
    ).removesuffix("<think></think>")


OPENED = chatml("said", "<think>\\n")
GLM = chatml("'<think></think>' + said", "<think>")
DEEPSEEK = chatml("'</think>' + said", "<think>")
FREE = chatml("said", "")


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[Callable[..., LlamaEngine]]:
    opened: list[LlamaEngine] = []

    def make(template: str, *more: str) -> LlamaEngine:
        markers = ["<think>", "</think>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", *more]
        path = templated_model(tmp_path / f"{len(opened)}.gguf", template, markers=markers)
        opened.append(LlamaEngine(path, EngineParams(n_ctx=1024, n_threads=1), cache_dir=tmp_path))
        return opened[-1]

    yield make
    for engine in opened:
        engine.close()


class Script:
    """Stands in for the model's free will only: it says given tokens, and as a model does, stops at an end of its turn."""

    def __init__(self, engine: LlamaEngine, text: str) -> None:
        self.engine = engine
        self.tokens = engine.tokenize(text, special=True)

    def __call__(self, seq: int, sampling: Sampling, max_tokens: int) -> Generation:
        generation = Generation()

        def events() -> Iterator[TokenEvent]:
            for token in self.tokens:
                generation.tokens.append(token)
                yield TokenEvent(token, self.engine.detokenize([token]))
            generation.stop_reason = StopReason.END

        generation.events = events()
        return generation


@pytest.mark.parametrize(
    ("template", "written", "reasoning"),
    [
        (HARMONY, "<|channel|>final<|message|>It is five.", ""),
        (HARMONY_THINKS, "<|channel|>final<|message|>It is five.", ""),
        (
            HARMONY_THINKS,
            "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|message|>It is five.",
            "Let me see.",
        ),
        (OPENED, "Let me see.\n</think>\n\nIt is five.", "Let me see."),
        (OPENED, "</think>\n\nIt is five.", ""),
        (GLM, "Let me see.</think>It is five.", "Let me see."),
        (DEEPSEEK, "Let me see.</think>It is five.", "Let me see."),
        (FREE, "<think>\nLet me see.\n</think>\n\nIt is five.", "Let me see."),
        (FREE, "It is five.", ""),
    ],
    ids=["channel", "no thoughts", "channels", "opened", "opened, empty", "glm", "deepseek", "free", "free, none"],
)
def test_what_was_written_is_told_apart_and_leaves_as_in_the_templates_history(
    make_engine: Callable[..., LlamaEngine],
    monkeypatch: pytest.MonkeyPatch,
    template: str,
    written: str,
    reasoning: str,
) -> None:
    engine = make_engine(template)
    assert engine.info.chat_format.proven, engine.info.chat_format.problem
    monkeypatch.setattr(engine, "generate", Script(engine, written))
    notebook = Notebook(engine)
    shown: list[str] = []
    reply = notebook.ask("How many?", on_text=shown.append)
    assert (reply.segment.text, reply.segment.reasoning) == ("It is five.", reasoning)
    assert reply.text == "It is five."
    assert "".join(shown) == engine.detokenize(engine.tokenize(written, special=True)), (
        "who listens tells it apart himself"
    )
    notebook.ask("Sure?")
    notebook.check()
    history = [Message("user", "How many?"), Message("assistant", "It is five."), Message("user", "Sure?")]
    rendered = Oracle(template, "<s>", "</s>").render(*history, generate=True)
    if not rendered.startswith("<s>"):
        rendered = "<s>" + rendered  # the vocabulary asks for it
    expected = engine.tokenize(rendered, special=True)
    tokens = notebook.tokens[: len(expected)]
    assert tokens == expected, f"{engine.detokenize(tokens)!r}\n{rendered!r}"


def test_a_marker_that_the_vocabulary_does_not_know_as_an_end_ends_the_answer(
    make_engine: Callable[..., LlamaEngine],
) -> None:
    engine = make_engine(HARMONY.replace("<|end|>", "<|over|>").replace("<|return|>", "<|over|>"), "<|over|>")
    assert engine.info.chat_format.end_markers == ("<|over|>",)
    (over,) = engine.tokenize("<|over|>", special=True)
    for seed in range(16):  # hot enough that a model of random weights comes upon every token
        notebook = Notebook(engine)
        sampling = Sampling(temperature=50.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
        reply = notebook.ask("Hi?", sampling=sampling, max_tokens=150)
        written = reply.segment.tokens[reply.segment.content_start : reply.segment.content_stop]
        assert over not in written
        notebook.close()


def test_a_template_of_plain_text_ends_answers_at_its_text(
    make_engine: Callable[..., LlamaEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    template = (
        "{% for m in messages %}{{ '### ' + m.role + ':\\n' + m.content + '\\n\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '### assistant:\\n' }}{% endif %}"
    )
    engine = make_engine(template)
    assert engine.info.chat_format.proven
    assert engine.info.chat_format.stop_texts
    monkeypatch.setattr(engine, "generate", Script(engine, "Five.\n\n### user:\nAnd mine?"))
    assert Notebook(engine).ask("How many?").segment.text.rstrip() == "Five."


def test_an_empty_system_text_is_what_the_template_makes_of_one(make_engine: Callable[..., LlamaEngine]) -> None:
    engine = make_engine(FREE)
    notebook = Notebook(engine, system="")
    notebook.say("How many?", "Five.")
    history = [Message("system", ""), Message("user", "How many?"), Message("assistant", "Five.")]
    rendered = "<s>" + Oracle(FREE, "<s>", "</s>").render(*history)
    assert engine.detokenize(notebook.tokens).rstrip("\n") == rendered.rstrip("\n")
