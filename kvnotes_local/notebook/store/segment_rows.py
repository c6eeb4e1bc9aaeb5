"""Segments as rows of the database, and back; what comes back is checked."""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

import numpy as np

from kvnotes_local.chat_format.turns import FieldSpan
from kvnotes_local.notebook.proof import Proof
from kvnotes_local.notebook.segment import Freshness, Kind, Run, Segment
from kvnotes_local.records import Count, as_plain, as_type
from kvnotes_local.small_file import parse_json
from kvnotes_local.wording import counted


class _Row(NamedTuple):
    kind: Kind
    name: str
    text: str
    value: str
    reasoning: str
    reasoning_start: int
    reasoning_stop: int
    tokens: bytes
    content_start: int
    content_stop: int
    fields: str
    runs: str
    artifact: str | None
    seam: int
    stopped: Literal[0, 1]
    proof: str | None


COLUMNS = ", ".join(_Row._fields)
MAX_TOKEN_BYTES = 64 << 20
"""Of one segment: 16 million tokens, more than any context holds."""


def segment_to_row(segment: Segment) -> tuple[Any, ...]:
    """Values of COLUMNS."""
    return (
        segment.kind.value,
        segment.name,
        segment.text,
        segment.value,
        segment.reasoning,
        segment.reasoning_start,
        segment.reasoning_stop,
        np.array(segment.tokens, "<i4").tobytes(),
        segment.content_start,
        segment.content_stop,
        json.dumps([[span.name, span.value, span.start, span.stop] for span in segment.fields]),
        json.dumps([[run.n_tokens, run.freshness.value] for run in segment.runs]),
        segment.artifact,
        segment.seam,
        int(segment.stopped),
        None if segment.proof is None else json.dumps(as_plain(segment.proof)),
    )


def segment_from_row(row: tuple[Any, ...]) -> Segment:
    """A segment from values of COLUMNS. Raises ValueError for values that make no segment."""
    data = as_type(row, _Row)
    if len(data.tokens) > MAX_TOKEN_BYTES:
        raise ValueError(f"a segment claims {counted(len(data.tokens) // 4, 'token')}")
    fields = as_type(parse_json(data.fields), list[tuple[str, str, int, int]])
    runs = as_type(parse_json(data.runs), list[tuple[Count, Freshness]])
    segment = Segment(
        kind=data.kind,
        name=data.name,
        text=data.text,
        value=data.value,
        reasoning=data.reasoning,
        reasoning_start=data.reasoning_start,
        reasoning_stop=data.reasoning_stop,
        tokens=tuple(np.frombuffer(data.tokens, "<i4").tolist()),
        content_start=data.content_start,
        content_stop=data.content_stop,
        fields=tuple(FieldSpan(*span) for span in fields),
        runs=tuple(Run(*run) for run in runs),
        artifact=data.artifact,
        seam=data.seam,
        stopped=bool(data.stopped),
        proof=None if data.proof is None else as_type(parse_json(data.proof), Proof),
    )
    n = segment.n_tokens
    if not 0 <= segment.content_start <= segment.content_stop <= n or any(token < 0 for token in segment.tokens):
        raise ValueError("a segment's tokens and content contradict each other")
    if sum(run.n_tokens for run in segment.runs) != n:
        raise ValueError("a segment's freshness does not cover its tokens")
    if not 0 <= segment.seam <= n:
        raise ValueError("a segment's seam is longer than it is")
    if not 0 <= segment.reasoning_start <= segment.reasoning_stop <= n:
        raise ValueError("a segment's reasoning lies outside of it")
    if any(not 0 <= span.start <= span.stop <= n for span in segment.fields):
        raise ValueError("a field lies outside its segment")
    return segment
