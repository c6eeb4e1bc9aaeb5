"""Segments as rows of the database, and back; what comes back is checked."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from kvnotes_local.chat_format.turns import FieldSpan
from kvnotes_local.notebook.proof import Proof
from kvnotes_local.notebook.segment import Freshness, Kind, Run, Segment
from kvnotes_local.wording import counted

COLUMNS = (
    "kind, name, text, value, reasoning, reasoning_start, reasoning_stop, tokens, content_start, content_stop, fields, runs, "
    "artifact, seam, stopped, proof"
)
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
        None if segment.proof is None else json.dumps(asdict(segment.proof)),
    )


def segment_from_row(row: tuple[Any, ...]) -> Segment:
    """A segment from values of COLUMNS. Raises ValueError, TypeError or KeyError for values that make no segment."""
    kind, name, text, value, reasoning, thought, spoken, tokens, start, stop, fields, runs, artifact, seam, *rest = row
    stopped, proof = rest
    if len(tokens) > MAX_TOKEN_BYTES:
        raise ValueError(f"a segment claims {counted(len(tokens) // 4, 'token')}")
    segment = Segment(
        kind=Kind(kind),
        name=str(name),
        text=str(text),
        value=str(value),
        reasoning=str(reasoning),
        reasoning_start=int(thought),
        reasoning_stop=int(spoken),
        tokens=tuple(int(token) for token in np.frombuffer(tokens, "<i4")),
        content_start=int(start),
        content_stop=int(stop),
        fields=tuple(FieldSpan(str(n), str(v), int(a), int(b)) for n, v, a, b in json.loads(fields)),
        runs=tuple(Run(int(n), Freshness(freshness)) for n, freshness in json.loads(runs)),
        artifact=None if artifact is None else str(artifact),
        seam=int(seam),
        stopped=bool(stopped),
        proof=None if proof is None else Proof(**json.loads(proof)),
    )
    n = segment.n_tokens
    if not 0 <= segment.content_start <= segment.content_stop <= n or any(token < 0 for token in segment.tokens):
        raise ValueError("a segment's tokens and content contradict each other")
    if sum(run.n_tokens for run in segment.runs) != n or any(run.n_tokens < 0 for run in segment.runs):
        raise ValueError("a segment's freshness does not cover its tokens")
    if not 0 <= segment.seam <= n:
        raise ValueError("a segment's seam is longer than it is")
    if not 0 <= segment.reasoning_start <= segment.reasoning_stop <= n:
        raise ValueError("a segment's reasoning lies outside of it")
    if any(not 0 <= span.start <= span.stop <= n for span in segment.fields):
        raise ValueError("a field lies outside its segment")
    return segment
