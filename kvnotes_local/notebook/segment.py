"""Segments: the runs of tokens that a chat is made of. They are the truth; the engine's cache is their shadow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kvnotes_local.chat_format.turns import FieldSpan, TurnTokens
from kvnotes_local.notebook.proof import Proof


class Kind(StrEnum):
    """What a segment is."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    SKILL = "skill"
    ERRATUM = "erratum"


class Freshness(StrEnum):
    """Where the rows of a token come from.

    FRESH: computed on what stands before it now. SPLICED: taken from an artifact. REPAIRED: the seam of a spliced segment,
    computed on the real prefix. EDITED: a field's new value. STALE: computed on something that has changed since.
    """

    FRESH = "fresh"
    SPLICED = "spliced"
    REPAIRED = "repaired"
    EDITED = "edited"
    STALE = "stale"


@dataclass(frozen=True)
class Run:
    """``n_tokens`` tokens in a row with one freshness."""

    n_tokens: int
    freshness: Freshness


@dataclass(frozen=True)
class Segment:
    """A turn or a skill, with its wrapper.

    ``name``: of the skill, or of the field that an erratum corrects. ``text``: the content as people read it.
    ``content_start … content_stop``: tokens that are not wrapper. ``runs`` cover ``tokens`` in order.
    ``artifact``: file that the rows came from; ``seam``: tokens in front of them that were computed on the real prefix.
    ``value``: what an erratum says. ``reasoning``: what the model thought before an answer;
    as long as it is in the cache it is tokens ``reasoning_start … reasoning_stop``. ``stopped``: the user cut the answer short.
    ``proof``: what an answer cost.
    """

    kind: Kind
    tokens: tuple[int, ...]
    text: str = ""
    name: str = ""
    content_start: int = 0
    content_stop: int = 0
    fields: tuple[FieldSpan, ...] = ()
    runs: tuple[Run, ...] = ()
    artifact: str | None = None
    seam: int = 0
    value: str = ""
    reasoning: str = ""
    reasoning_start: int = 0
    reasoning_stop: int = 0
    stopped: bool = False
    proof: Proof | None = field(default=None, compare=False)

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def freshness(self) -> Freshness:
        """The freshness that most of the segment's tokens have."""
        counts: dict[Freshness, int] = {}
        for run in self.runs:
            counts[run.freshness] = counts.get(run.freshness, 0) + run.n_tokens
        return max(counts, key=lambda freshness: counts[freshness], default=Freshness.FRESH)

    def with_runs(self, *runs: Run) -> Segment:
        return replace(self, runs=merge_runs(runs))


def make_segment(kind: Kind, turn: TurnTokens, text: str, name: str = "") -> Segment:
    """A freshly computed segment of one turn."""
    return Segment(
        kind=kind,
        tokens=turn.tokens,
        text=text,
        name=name,
        content_start=turn.content_start,
        content_stop=turn.content_stop,
        fields=turn.fields,
        runs=merge_runs([Run(len(turn.tokens), Freshness.FRESH)]),
    )


def merge_runs(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Neighbours of one freshness become one run; empty runs go."""
    merged: list[Run] = []
    for run in runs:
        if run.n_tokens <= 0:
            continue
        if merged and merged[-1].freshness is run.freshness:
            merged[-1] = Run(merged[-1].n_tokens + run.n_tokens, run.freshness)
        else:
            merged.append(run)
    return tuple(merged)


def all_tokens(segments: Sequence[Segment]) -> list[int]:
    """Tokens of a chat; a token's position is its index."""
    return [token for segment in segments for token in segment.tokens]


def start_of(segments: Sequence[Segment], index: int) -> int:
    """Position of the first token of segment ``index`` (``len(segments)``: the end)."""
    return sum(segment.n_tokens for segment in segments[:index])
