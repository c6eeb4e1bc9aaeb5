"""A sequence and the tokens that it holds; what a plan has done so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvnotes_local.contract.protocol import Progress
from kvnotes_local.engine.llama.checkpoints import Checkpoints
from kvnotes_local.engine.sequences.rows_transfer import TransferStats


@dataclass
class SequenceState:
    """A sequence of the context and the tokens that it holds, in order of position. ``checkpoints``: of prefix-only models."""

    id: int
    tokens: list[int] = field(default_factory=list)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)


Sources = Mapping[int, "SequenceState"]
"""Sequences that rows are taken from, by the numbers that grafts name them with."""


@dataclass
class PlanRun:
    """One plan being carried out."""

    logits: bool
    progress: Progress | None
    sources: Sources
    total: int
    done: int = 0
    reused: int = 0
    moved: int = 0
    decoded: int = 0
    spliced: int = 0
    decode_seconds: float = 0.0
    transfer: TransferStats = field(default_factory=TransferStats)

    def begin_again(self, prefix: int) -> None:
        """Only the first ``prefix`` tokens are there; what was decoded in vain still counts as work."""
        self.done = self.reused = prefix
        self.moved = self.spliced = 0
        self.transfer = TransferStats()

    def advance(self, n_tokens: int) -> None:
        self.done += n_tokens
        if self.progress is not None:
            self.progress(self.done, self.total)

    def offset_progress(self) -> Callable[[int], None] | None:
        """Takes the progress of one decode and tells that of the whole plan; None where nobody listens."""
        tell, before = self.progress, self.done
        return None if tell is None else lambda n_tokens: tell(before + n_tokens, self.total)
