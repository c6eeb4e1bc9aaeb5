"""What the layers above may ask of an engine; in-process and child-process engines implement it alike.

The calls are coarse on purpose: key and value bytes never leave the engine. A change of a chat is a *plan* (``plan.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.contract.compile_job import (
    BatchCost,
    Compiled,
    CompileJob,
    CompileListener,
)
from kvnotes_local.contract.generation import Generation, Sampling
from kvnotes_local.contract.model_info import ModelInfo
from kvnotes_local.contract.plan import Applied, Part

LoadProgress = Callable[[float], bool]
"""Called with 0 … 1 while a model is loaded; returning False cancels."""

Progress = Callable[[int, int], None]
"""Called with (done, total), in tokens."""


@dataclass(frozen=True)
class RowCheck:
    """How far ``n_rows`` rows of an artifact are from what the model computes: the distance relative to a row's length, mean
    over keys and values of all layers; of all checked rows the mean and the worst."""

    n_rows: int
    mean_error: float
    worst_error: float


@dataclass(frozen=True)
class Parked:
    """``kept``: the state is there for the next time. ``forgotten``: states of other chats that had to go for it, to stay within
    the limit."""

    kept: bool
    forgotten: int = 0


class Engine(Protocol):
    """One loaded model with one context that holds several sequences (chats, forks).

    Calls raise EngineError (or a subclass) with what happened; after Cancelled the sequence is what it was before.
    """

    @property
    def info(self) -> ModelInfo: ...

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Tokens of a text; special tokens are recognised only where ``special`` says so. No BOS is added."""
        ...

    def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> str: ...

    def new_sequence(self) -> int:
        """Number of an unused sequence. Where the context has no place for it, forks for undo are given up, then the sequence
        that was not used for longest is put aside; it comes back when it is used again."""
        ...

    def free_sequence(self, seq: int) -> None: ...

    def tokens(self, seq: int) -> tuple[int, ...]:
        """Tokens that the sequence holds, in order of position; fewer than it did where its place was needed meanwhile and its
        state could not be kept."""
        ...

    def apply(
        self,
        seq: int,
        parts: Sequence[Part],
        *,
        logits: bool = True,
        progress: Progress | None = None,
    ) -> Applied:
        """Make the sequence what the plan says.

        Where the context cannot hold old and new rows side by side, first forks for undo give way, then other sequences, then the
        old rows are taken out first; an error then leaves the beginning of the new state.
        """
        ...

    def check(self, seq: int) -> None:
        """Verify that the cells of a sequence stand at positions 0 … n - 1. Raises EngineError."""
        ...

    def fork(self, seq: int, length: int, *, for_undo: bool = False) -> int:
        """New sequence that shares the first ``length`` cells of ``seq``; nothing is copied.

        A prefix-only model can go back to checkpoints only: its fork holds what the nearest one does (see ``tokens``).
        ``for_undo``: it never makes a chat give way, and holds nothing any more when its place was needed."""
        ...

    def logits(self, seq: int) -> NDArray[np.float32]:
        """float32 (n_vocab,) after the sequence's last token, which must have been decoded by the last call."""
        ...

    def score(self, seq: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Decode ``tokens`` at the end of the sequence; float32 (len(tokens), n_vocab), row i after token i."""
        ...

    def generate(self, seq: int, sampling: Sampling, max_tokens: int) -> Generation: ...

    def compile(self, job: CompileJob, *, progress: Progress | None = None) -> Compiled:
        """Make an artifact in a context of its own, F16, whatever the live one is. Raises ArtifactError, Cancelled."""
        ...

    def compile_many(self, jobs: Sequence[CompileJob], *, listen: CompileListener | None = None) -> BatchCost:
        """Make artifacts one after the other in one context; each lead is computed once, short jobs are decoded together.

        ``listen`` is called from the calling thread, in order, with plain dataclasses: a child process sends each as one
        message, and the returned cost as the last. Every job ends in JobDone, JobSkipped or JobFailed; a failed one does
        not stop the others. Raises Cancelled (what is done stays), and DiskFullError after the JobFailed that met it.
        """
        ...

    def check_artifact(self, path: Path, lead: Sequence[int], spans: Sequence[tuple[int, int]]) -> RowCheck:
        """Compute tokens ``start … stop`` of each span again, behind ``lead`` and the artifact's own rows before them, in F16.

        Spans ascend without overlap; the rotation that the artifact was made under is not asked for, since wrong keys show.
        Raises ArtifactError for a damaged artifact, another model's, or a whole state; Cancelled.
        """
        ...

    def park(self, seq: int, key: str, *, on_disk: bool = False) -> Parked:
        """Take a sequence out of the context and keep its state under ``key``; ``on_disk`` also for other processes.

        It is not kept where there is no room; the sequence is freed in either case.
        """
        ...

    def unpark(self, key: str) -> int | None:
        """A new sequence with the state that was kept under ``key``; None where there is none that fits."""
        ...

    def discard(self, key: str) -> None:
        """Forget what was kept under ``key``."""
        ...

    def cancel(self) -> None:
        """Stop what is running, from any thread; a generation ends with what it has, the rest raises Cancelled."""
        ...

    def close(self) -> None: ...
