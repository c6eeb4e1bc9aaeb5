"""One artifact to be made: its tokens, what stands before them, and where it belongs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvnotes_local.chat_format.turns import TurnTokens
from kvnotes_local.contract.compile_job import ArtifactLabels, CompileJob
from kvnotes_local.contract.store_type import StoreType


@dataclass(frozen=True)
class Task:
    """What one artifact will be made from, and where it belongs."""

    text: str
    turn: TurnTokens
    leads: tuple[tuple[int, ...], ...]
    labels: ArtifactLabels
    store: StoreType
    key: str
    path: Path

    def job(self, *, keep_existing: bool = False) -> CompileJob:
        """The task as the engine wants it."""
        return CompileJob(self.turn.tokens, self.leads, self.path, self.labels, self.store, keep_existing)
