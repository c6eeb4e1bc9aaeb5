"""Changing a field: what each level of an edit does."""

from __future__ import annotations

from collections.abc import Sequence

from kvnotes_local.notebook.changes import EVERYTHING, Change, Draft
from kvnotes_local.notebook.edit import DEFAULT_WINDOW, EditLevel
from kvnotes_local.notebook.segment import Kind, Segment
from kvnotes_local.notebook.segment_factory import SegmentFactory


def edit_field(
    segments: Sequence[Segment],
    n_cached: int,
    factory: SegmentFactory,
    name: str,
    value: str,
    level: EditLevel,
    window: int = DEFAULT_WINDOW,
) -> Change:
    """The change that a level of edit is. There is one erratum a field: an earlier one goes."""
    old = next((i for i, s in enumerate(segments) if s.kind is Kind.ERRATUM and s.name == name), None)
    draft = Draft(segments, n_cached, factory.joint)
    if level is not EditLevel.ERRATUM:
        reach = {EditLevel.WINDOW: window, EditLevel.FULL: EVERYTHING}.get(level, 0)
        draft.keep_with_field(name, value, factory.tokens_of, factory.text_of, window=reach, without=old)
    elif old is None:
        draft.keep()
    else:
        draft.keep(0, old).changed().keep(old + 1)
    # A window that ends before the chat does leaves stale notes behind it, so it needs the erratum as well.
    if level in {EditLevel.ERRATUM, EditLevel.FIELD_ERRATUM} or (level is EditLevel.WINDOW and draft.has_stale):
        draft.read(factory.field_erratum(name, value))
    return draft.change()
