"""What fidelity is measured on: chats into which a skill is spliced, and questions asked behind it."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from kvnotes_local.contract.protocol import Engine
from kvnotes_local.errors import UsageError
from kvnotes_local.notebook.changes import find_skill
from kvnotes_local.notebook.segment import Segment, all_tokens
from kvnotes_local.notebook.segment_factory import SegmentFactory
from kvnotes_local.skills.evals import SkillQuestion


@dataclass(frozen=True)
class Context:
    """The beginning of a chat."""

    name: str
    segments: tuple[Segment, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(all_tokens(self.segments))


@dataclass(frozen=True)
class Question:
    """A question behind the skill. ``choices``: answers to decide between, none for an open question; ``expect``: the right
    one, empty where there is none."""

    ask: str
    choices: tuple[str, ...] = ()
    expect: str = ""


@dataclass(frozen=True)
class AskTokens:
    """A question for one model: the user turn with the opening of the answer, and each choice with what ends an answer."""

    tokens: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...] = ()


def bundled_contexts(engine: Engine) -> tuple[Context, ...]:
    """Three kinds of chats: just begun, small talk, work with tables and code."""
    factory = SegmentFactory(engine)
    contexts = []
    for entry in _data()["context"]:
        segments = factory.beginning(None, {})
        for user, assistant in entry["exchanges"]:
            segments += (factory.user(user, segments[-1] if segments else None), factory.assistant(assistant))
        contexts.append(Context(entry["name"], segments))
    return tuple(contexts)


def chat_context(name: str, segments: Sequence[Segment], skill_names: Sequence[str]) -> Context:
    """A stored chat as a context: up to the first of these skills where it holds one. Raises UsageError for an empty one."""
    places = [place for skill in skill_names if (place := find_skill(segments, skill)) is not None]
    before = tuple(segments[: min(places)] if places else segments)
    if not before:
        raise UsageError(f"The chat {name} is empty before the skill, so there is nothing to measure in.")
    return Context(name, before)


def bundled_questions() -> tuple[Question, ...]:
    """Open questions that can be asked about any text."""
    return tuple(Question(entry["ask"]) for entry in _data()["question"])


def skill_questions(evals: Sequence[SkillQuestion], n: int = 4) -> tuple[Question, ...]:
    """The first ``n`` questions that come with a skill, and one open one; the bundled ones where it has none."""
    own = tuple(Question(one.ask, one.choices, one.expect) for one in evals[:n])
    return own + bundled_questions()[: 1 if own else None]


def ask_tokens(engine: Engine, question: Question) -> AskTokens:
    """The question behind a skill, in the model's format."""
    factory = SegmentFactory(engine)
    end = factory.turns.assistant_close()[:1]
    return AskTokens(
        factory.user(question.ask, None).tokens + factory.opening().tokens,
        tuple((*engine.tokenize(choice), *end) for choice in question.choices),
    )


def _data() -> dict[str, Any]:
    text = files("kvnotes_local.evaluation").joinpath("data", "contexts.toml").read_text("utf-8")
    return tomllib.loads(text)
