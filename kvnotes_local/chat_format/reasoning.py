"""What a model thinks before it answers: which texts stand around it, and which of its tokens leave a finished turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvnotes_local.chat_format.format import ChatFormat, Reasoning
from kvnotes_local.chat_format.rendering import ANSWER, THOUGHT, USER, USER2, ChatRendering, CutError, between
from kvnotes_local.chat_format.sandbox import Message, TemplateError
from kvnotes_local.chat_format.turns import Tokenize, TurnTokenizer

_USUAL_OPEN, _USUAL_CLOSE = "<think>", "</think>"
"""Markers of models whose template does not write thoughts, but takes them out, or does not know of them."""


@dataclass(frozen=True)
class Spoken:
    """An answer as far as it has come. ``thinking``: the reasoning has not ended yet. ``thought``: it begins with a place for
    reasoning, which may be empty."""

    reasoning: str
    said: str
    thinking: bool
    thought: bool = False


def split_reasoning(text: str, chat_format: ChatFormat) -> Spoken:
    """What a model has written, told apart: what it thought and what it said, without the texts around both."""
    markers = chat_format.reasoning
    start = text.lstrip()
    if markers is not None:
        opening, closing = markers.open.strip(), markers.close.strip()
        if chat_format.opens_reasoning or (opening and start.startswith(opening)):
            reasoning, closed, said = start.removeprefix(opening).partition(closing)
            return Spoken(reasoning.strip(), said.lstrip(), thinking=not closed, thought=True)
    beginnings = [chat_format.answer_open, markers.open.strip() if markers is not None else ""]
    if start and any(one.lstrip().startswith(start) and one.strip() != start for one in beginnings if one):
        return Spoken("", "", thinking=False)  # a beginning of a marker may still become one
    return Spoken("", text.removeprefix(chat_format.answer_open), thinking=False)


def leaving(
    generation_open: Sequence[int], assistant_open: Sequence[int], written: Sequence[int], said: int
) -> tuple[int, int] | None:
    """Which tokens of a turn leave it once it is finished, so that it stands as in the template's history.

    The turn is ``generation_open`` and then what the model has ``written``, whose answer begins at token ``said``. None where its
    tokens cannot be made those of the history by leaving some out.
    """
    turn = [*generation_open, *written]
    stop = len(generation_open) + said
    kept = next((n for n, token in enumerate(assistant_open) if n >= stop or turn[n] != token), len(assistant_open))
    rest = list(assistant_open[kept:])
    start_of_rest = stop - len(rest)
    if start_of_rest < kept or turn[start_of_rest:stop] != rest:
        return None
    return kept, start_of_rest


def with_reasoning(found: ChatFormat, render: ChatRendering, tokenize: Tokenize) -> ChatFormat:
    """The format with its markers of reasoning, and whether the thoughts of finished turns leave it as in the template."""
    markers = _markers(found, render)
    if markers is None:
        return found
    with_markers = replace(found, reasoning=markers)
    if markers.leaves and not _leaves_as_rendered(with_markers, render, tokenize):
        return replace(found, reasoning=replace(markers, leaves=False))
    return with_markers


def _markers(found: ChatFormat, render: ChatRendering) -> Reasoning | None:
    user, user2 = Message("user", USER), Message("user", USER2)
    try:
        thought = Message("assistant", ANSWER, THOUGHT)
        _, opening, closing, _ = between(render(user, thought), USER, THOUGHT, ANSWER)
        opening = opening.removeprefix(found.user.close)
        same = render.shared_opening(opening, found.assistant.open, found.generation_open or found.assistant.open)
        return Reasoning(opening[same:], closing, leaves=THOUGHT not in render(user, thought, user2))
    except (TemplateError, CutError):
        pass
    try:
        inline = Message("assistant", f"{_USUAL_OPEN}\n{THOUGHT}\n{_USUAL_CLOSE}\n\n{ANSWER}")
        text = render(user, inline, user2)
        if THOUGHT not in text and ANSWER in text:
            return Reasoning(_USUAL_OPEN, _USUAL_CLOSE, leaves=True)
    except TemplateError:
        pass
    usual = render.is_one_token(_USUAL_OPEN) and render.is_one_token(_USUAL_CLOSE)
    return Reasoning(_USUAL_OPEN, _USUAL_CLOSE, leaves=False) if usual else None


def _leaves_as_rendered(found: ChatFormat, render: ChatRendering, tokenize: Tokenize) -> bool:
    """Is a chat in which the model has thought and answered, without its thoughts, the template's history?"""
    turns = TurnTokenizer(found, tokenize)
    assert found.reasoning is not None
    thought = "Let me see."
    before = ("" if found.opens_reasoning else found.reasoning.open) + thought + found.reasoning.close
    said = list(tokenize(before, special=True))
    written = [*said, *tokenize("It is five.")]
    gone = leaving(turns.generation_open(), turns.assistant_open(), written, len(said))
    if gone is None:
        return False
    turn = [*turns.generation_open(), *written]
    chat = [
        *turns.beginning(None).tokens,
        *turns.user("How many?").tokens,
        *turn[: gone[0]],
        *turn[gone[1] :],
        *turns.assistant_close(),
        *turns.user("Why?").tokens,
    ]
    history = [Message("user", "How many?"), Message("assistant", "It is five."), Message("user", "Why?")]
    try:
        return [*chat, *turns.generation_open()] == render.tokens(render(*history, generate=True))
    except TemplateError:
        return False
