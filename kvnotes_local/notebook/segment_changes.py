"""Changes of whole segments: a skill dropped, a segment replaced or taken out."""

from __future__ import annotations

from kvnotes_local.notebook.changes import EVERYTHING, Change, Draft, find_skill
from kvnotes_local.notebook.segment import Segment
from kvnotes_local.notebook.working_chat import MakeChange


def drop_skill(name: str, erratum: Segment | None) -> MakeChange:
    """Take a skill out. What follows is stale and ``erratum`` says at the end that the skill no longer applies; without
    one, what follows is read again."""

    def make(segments: tuple[Segment, ...], n_cached: int) -> Change:
        index = find_skill(segments, name)
        assert index is not None
        draft = Draft(segments, n_cached).keep(0, index).changed(0 if erratum else EVERYTHING).keep(index + 1)
        return (draft.read(erratum) if erratum else draft).change()

    return make


def replace_segment(index: int, new: Segment | None, *, recompute: bool) -> MakeChange:
    """Put ``new`` in the place of segment ``index``, or nothing; what follows is stale, or read again."""

    def make(segments: tuple[Segment, ...], n_cached: int) -> Change:
        draft = Draft(segments, n_cached).keep(0, index)
        if new is not None:
            draft.read(new)
        return draft.changed(EVERYTHING if recompute else 0).keep(index + 1).change()

    return make
