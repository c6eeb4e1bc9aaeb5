"""Making room when a chat fills the context: what is pinned, and what leaves first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvnotes_local.errors import ContextFullError
from kvnotes_local.notebook.changes import Draft
from kvnotes_local.notebook.on_full import OnFull
from kvnotes_local.notebook.question_joint import QuestionJoint
from kvnotes_local.notebook.segment import Kind, Segment
from kvnotes_local.wording import counted


def is_pinned(segment: Segment) -> bool:
    """System text, skills, errata and whatever has fields stay."""
    return segment.kind in {Kind.SYSTEM, Kind.SKILL, Kind.ERRATUM} or bool(segment.fields)


def turns_to_drop(segments: Sequence[Segment], room: int) -> frozenset[int]:
    """Indices of the oldest turns that have to leave so that the chat takes at most ``room`` tokens: user turns with the
    answers behind them. Fewer than needed where everything else is pinned."""
    total = sum(segment.n_tokens for segment in segments)
    leaving: set[int] = set()
    for index, segment in enumerate(segments):
        if total <= room:
            break
        follows = index - 1 in leaving and segment.kind is Kind.ASSISTANT
        if index in leaving or is_pinned(segment) or not (segment.kind is Kind.USER or follows):
            continue
        leaving.add(index)
        total -= segment.n_tokens
        if (
            index + 1 < len(segments)
            and segments[index + 1].kind is Kind.ASSISTANT
            and not is_pinned(segments[index + 1])
        ):
            leaving.add(index + 1)
            total -= segments[index + 1].n_tokens
    return frozenset(leaving)


def with_room(
    segments: Sequence[Segment],
    n_cached: int,
    room: int,
    on_full: OnFull,
    strip_reasoning: bool,
    notice: Callable[[str], None],
    *,
    joint: QuestionJoint | None,
) -> Draft:
    """The chat in at most ``room`` tokens: the oldest turns leave, which ``notice`` is told before. With ``strip_reasoning``
    the reasoning of finished answers leaves too and stays in the transcript only. Raises ContextFullError for REFUSE."""
    leaving = turns_to_drop(segments, room)
    if leaving and on_full is OnFull.REFUSE:
        raise ContextFullError(
            f"The context is full: it may take {counted(max(0, room), 'token')}. Use a larger --n-ctx, drop a skill or "
            "start anew."
        )
    if leaving:
        n_tokens = sum(segments[index].n_tokens for index in leaving)
        notice(
            f"The context is full: {counted(len(leaving), 'old turn')} ({counted(n_tokens, 'token')}) will leave it; "
            "skills, fields and the system text stay."
        )
    draft = Draft(segments, n_cached, joint)
    for index, segment in enumerate(segments):
        if index in leaving:
            draft.changed()
        elif strip_reasoning and segment.reasoning_stop > segment.reasoning_start:
            draft.keep_without_reasoning(index)
        else:
            draft.keep(index, index + 1)
    return draft
