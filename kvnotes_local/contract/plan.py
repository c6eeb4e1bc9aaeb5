"""A change of a chat as a plan: parts from left to right which say for each run of tokens where its rows come from.

Position = index in the plan. Key and value bytes never leave the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvnotes_local.records import Tagged


class Keep(Tagged, frozen=True):
    """Rows ``start … stop`` of the sequence as it is now; moved (rotated) when they land elsewhere."""

    start: int
    stop: int

    @property
    def n_tokens(self) -> int:
        return self.stop - self.start


class Decode(Tagged, frozen=True):
    """Tokens to compute on what stands before them."""

    tokens: tuple[int, ...]

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)


class Splice(Tagged, frozen=True):
    """Rows ``start … stop`` of an artifact (indices into its tokens)."""

    artifact: Path
    start: int
    stop: int

    @property
    def n_tokens(self) -> int:
        return self.stop - self.start


class Graft(Tagged, frozen=True):
    """Rows ``start … stop`` of another sequence ``source``, moved (rotated) when they land elsewhere: to find out what a
    model has written into which rows.

    ``depth``: the share of the layers, 0 the first … 1 behind the last, whose rows are taken; a layer counts by its place in
    its cache. The other layers' rows come from ``own …`` of the sequence as it is now, and so do the tokens.
    """

    source: int
    start: int
    stop: int
    own: int = 0
    depth: tuple[float, float] = (0.0, 1.0)

    @property
    def n_tokens(self) -> int:
        return self.stop - self.start

    @property
    def whole(self) -> bool:
        """All layers?"""
        return self.depth[0] <= 0.0 and self.depth[1] >= 1.0


Part = Keep | Decode | Splice | Graft


@dataclass(frozen=True)
class Applied:
    """What a plan cost. Tokens; seconds of wall time.

    ``reused``: kept where they were, no data touched. ``moved``: kept and rotated. ``reposition_seconds`` covers reading,
    rotating and converting, ``restore_seconds`` the hand-over to llama.cpp.
    """

    reused: int = 0
    moved: int = 0
    decoded: int = 0
    spliced: int = 0
    decode_seconds: float = 0.0
    reposition_seconds: float = 0.0
    restore_seconds: float = 0.0
    seconds: float = 0.0
    bytes_restored: int = 0
