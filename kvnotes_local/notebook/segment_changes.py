"""Changes of whole segments: a skill dropped, a segment replaced or taken out, another system text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvnotes_local.notebook.changes import EVERYTHING, Change, Draft, find_skill, rebuild
from kvnotes_local.notebook.question_joint import QuestionJoint
from kvnotes_local.notebook.segment import Kind, Segment
from kvnotes_local.notebook.working_chat import MakeChange


def drop_skill(name: str, erratum: Segment | None, joint: QuestionJoint | None) -> MakeChange:
    """Take a skill out. What follows is stale and ``erratum`` says at the end that the skill no longer applies; without
    one, what follows is read again."""

    def make(segments: tuple[Segment, ...], n_cached: int) -> Change:
        index = find_skill(segments, name)
        assert index is not None
        draft = Draft(segments, n_cached, joint).keep(0, index).changed(0 if erratum else EVERYTHING).keep(index + 1)
        return (draft.read(erratum) if erratum else draft).change()

    return make


def replace_segment(index: int, new: Segment | None, joint: QuestionJoint | None, *, recompute: bool) -> MakeChange:
    """Put ``new`` in the place of segment ``index``, or nothing; what follows is stale, or read again."""

    def make(segments: tuple[Segment, ...], n_cached: int) -> Change:
        draft = Draft(segments, n_cached, joint).keep(0, index)
        if new is not None:
            draft.read(new)
        return draft.changed(EVERYTHING if recompute else 0).keep(index + 1).change()

    return make


def replace_beginning(
    beginning: Callable[[bool], Sequence[Segment]],
    held: Callable[[], Sequence[int]],
    user: Callable[[str, Segment | None], Segment],
    *,
    whole_states: bool,
) -> MakeChange:
    """Another system text: the chat is put together as if it had begun so. Skills are spliced again, the rest is read again,
    and nothing is stale. ``beginning``: what comes in its place; it is told whether something else than a question follows.
    ``held``: the tokens in the cache. ``whole_states``: artifacts hold what stands before the skill as well, which is another
    text now, so they are of no use."""

    def make(segments: tuple[Segment, ...], n_cached: int) -> Change:
        rest = list(segments[1:] if segments and segments[0].kind is Kind.SYSTEM else segments)
        is_question = not rest or rest[0].kind is Kind.USER
        new = beginning(not is_question)
        if rest and is_question:  # how it opens depends on whether a system turn stands before it
            rest[0] = user(rest[0].text, new[-1] if new else None)
        return rebuild((*new, *rest), held(), whole_states=whole_states, from_artifacts=not whole_states)

    return make
