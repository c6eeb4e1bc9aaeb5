"""From where a chat's next rows come: a plan for the engine, put together run by run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvnotes_local.contract.plan import Decode, Keep, Part, Splice


class PlanBuilder:
    """Collects runs from left to right and joins neighbours, so that the engine gets as few parts as possible.

    ``n_cached``: rows that the engine's sequence holds; what lies beyond is decoded.
    """

    def __init__(self, n_cached: int) -> None:
        self._n_cached = n_cached
        self._parts: list[Part] = []

    def keep(self, start: int, tokens: Sequence[int]) -> PlanBuilder:
        """Rows that the sequence holds at positions ``start …``."""
        n_held = max(0, min(len(tokens), self._n_cached - start))
        if n_held:
            last = self._parts[-1] if self._parts else None
            if isinstance(last, Keep) and last.stop == start:
                self._parts[-1] = Keep(last.start, start + n_held)
            else:
                self._parts.append(Keep(start, start + n_held))
        return self.decode(tokens[n_held:])

    def decode(self, tokens: Sequence[int]) -> PlanBuilder:
        if tokens:
            last = self._parts[-1] if self._parts else None
            if isinstance(last, Decode):
                self._parts[-1] = Decode(last.tokens + tuple(tokens))
            else:
                self._parts.append(Decode(tuple(tokens)))
        return self

    def splice(self, artifact: Path, start: int, stop: int) -> PlanBuilder:
        """Rows ``start … stop`` of an artifact."""
        if stop > start:
            self._parts.append(Splice(artifact, start, stop))
        return self

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(self._parts)
