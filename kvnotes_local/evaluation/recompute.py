"""What reading a whole chat afresh would give: the yardstick for splices and edits."""

from __future__ import annotations

from kvnotes_local.notebook.changes import EVERYTHING, Draft
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.segment import Kind, Segment
from kvnotes_local.notebook.segment_factory import SegmentFactory


def as_if_read(notebook: Notebook) -> tuple[Segment, ...]:
    """The segments that the chat would have if its fields had had their present values from the start: values in their
    places, no errata."""
    factory = SegmentFactory(notebook.engine)
    segments = notebook.segments
    for name, value in notebook.fields.items():
        draft = Draft(segments, 0)
        segments = (
            draft.keep_with_field(name, value, factory.tokens_of, factory.text_of, window=EVERYTHING).change().segments
        )
    return tuple(segment for segment in segments if segment.kind is not Kind.ERRATUM)
