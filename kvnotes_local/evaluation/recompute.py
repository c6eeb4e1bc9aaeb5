"""What reading a whole chat afresh would give: the yardstick for splices and edits."""

from __future__ import annotations

from collections.abc import Sequence

from kvnotes_local.contract.protocol import Engine
from kvnotes_local.notebook.changes import EVERYTHING, Draft, field_values
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.segment import Kind, Segment
from kvnotes_local.notebook.segment_factory import SegmentFactory


def as_if_read(notebook: Notebook) -> tuple[Segment, ...]:
    """The segments that the chat would have if its fields had had their present values from the start: values in their
    places, no errata."""
    return segments_as_if_read(notebook.engine, notebook.segments)


def segments_as_if_read(engine: Engine, segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """As ``as_if_read``, for segments of a chat with this engine's model."""
    factory = SegmentFactory(engine)
    found = tuple(segments)
    for name, value in field_values(segments).items():
        draft = Draft(found, 0)
        found = (
            draft.keep_with_field(name, value, factory.tokens_of, factory.text_of, window=EVERYTHING).change().segments
        )
    return tuple(segment for segment in found if segment.kind is not Kind.ERRATUM)
