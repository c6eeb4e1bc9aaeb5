"""What the layers above may ask of an engine; in-process and child-process engines implement it alike.

The calls are coarse on purpose: key and value bytes never leave the engine. A change of a chat is a *plan*, a list of
parts from left to right which says for each run of tokens where its rows come from. Position = index in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.engine.chat_format import ChatFormat
from kvnotes_local.engine.store_type import StoreType
from kvnotes_local.engine.turns import FieldSpan
from kvnotes_local.errors import KvnotesError
from kvnotes_local.kv.layout import GGMLType

DEFAULT_N_CTX = 8192
"""Tokens of a context when none are asked for and the model was trained on as many."""


class ModelClass(StrEnum):
    """What of a model's memory can be reused.

    SPLICE: attention keys and values per token that can be moved. PREFIX_ONLY: a recurrent state, restorable as a whole
    at the start of a chat. PREFILL: nothing.
    """

    SPLICE = "splice"
    PREFIX_ONLY = "prefix-only"
    PREFILL = "prefill"


@dataclass(frozen=True)
class EngineParams:
    """How to load a model and make its context; 0 or None means: choose for me.

    ``n_ctx`` in tokens. ``n_gpu_layers`` -1 for all. ``flash_attn`` None for llama.cpp's own choice.
    """

    n_ctx: int = 0
    type_k: GGMLType = GGMLType.F16
    type_v: GGMLType = GGMLType.F16
    n_gpu_layers: int = -1
    n_threads: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    flash_attn: bool | None = None
    extra_buffers: bool = True


@dataclass(frozen=True)
class ModelInfo:
    """What is known about the loaded model and its context.

    ``rotation_fingerprint``: of the measured rotation; for models whose rows cannot be moved, of the format of a whole state.
    """

    path: Path
    name: str
    arch: str
    description: str
    fingerprint: str
    model_class: ModelClass
    class_reason: str
    rotation_residual: float | None
    rotation_fingerprint: str
    n_params: int
    n_bytes: int
    n_ctx: int
    n_ctx_train: int
    n_swa: int
    n_vocab: int
    type_k: GGMLType
    type_v: GGMLType
    kv_bytes_per_token: int
    chat_format: ChatFormat
    llama_cpp_version: str


@dataclass(frozen=True)
class Keep:
    """Rows ``start … stop`` of the sequence as it is now; moved (rotated) when they land elsewhere."""

    start: int
    stop: int

    @property
    def n_tokens(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Decode:
    """Tokens to compute on what stands before them."""

    tokens: tuple[int, ...]

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Splice:
    """Rows ``start … stop`` of an artifact (indices into its tokens)."""

    artifact: Path
    start: int
    stop: int

    @property
    def n_tokens(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Graft:
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


@dataclass(frozen=True)
class Sampling:
    """Parameters of llama.cpp's samplers; temperature 0 is greedy. ``grammar`` is GBNF."""

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int = 0
    grammar: str | None = None


class StopReason(StrEnum):
    """Why a generation ended."""

    END = "end"
    LENGTH = "length"
    STOPPED = "stopped"


@dataclass(frozen=True)
class TokenEvent:
    """One generated token; ``text`` holds the characters it completed (may be empty inside a multi-byte character)."""

    token: int
    text: str


@dataclass
class Generation:
    """A running generation: iterate it for the tokens; afterwards ``stop_reason`` and ``seconds`` are set.

    ``n_cached`` of ``tokens`` are in the cache: the last token drawn is not decoded until it is needed.
    """

    events: Generator[TokenEvent, None, None] | None = None
    tokens: list[int] = field(default_factory=list)
    n_cached: int = 0
    stop_reason: StopReason | None = None
    seconds: float = 0.0
    end_token: int | None = None

    def __iter__(self) -> Iterator[TokenEvent]:
        return iter(()) if self.events is None else self.events

    def close(self) -> None:
        """End it here; the tokens so far stay."""
        if self.events is not None:
            self.events.close()


LoadProgress = Callable[[float], bool]
"""Called with 0 … 1 while a model is loaded; returning False cancels."""

Progress = Callable[[int, int], None]
"""Called with (done, total), in tokens."""


@dataclass(frozen=True)
class ArtifactLabels:
    """What an artifact was made from, for its metadata and its key."""

    skill: str
    skill_sha256: str
    lead: str
    wrapper: str
    fields: tuple[FieldSpan, ...] = ()


@dataclass(frozen=True)
class CompileJob:
    """One artifact to be made: rows of ``tokens`` computed behind each of ``leads`` (the mean when there are several).

    ``store``: F16, or Q8_0 at half the size. For a prefix-only model there is one lead and the whole state is kept.
    ``labels``: provenance that the engine does not know; the engine fills in the rest. ``keep_existing``: do nothing if
    ``path`` exists when the job's turn comes, because another process has made it meanwhile.
    """

    tokens: tuple[int, ...]
    leads: tuple[tuple[int, ...], ...]
    path: Path
    labels: ArtifactLabels
    store: StoreType = StoreType.F16
    keep_existing: bool = False


@dataclass(frozen=True)
class Compiled:
    """A written artifact. ``decoded``: tokens that were computed for it, once for each lead, without the leads' own.

    ``decode_seconds`` is the time in llama.cpp; jobs that were decoded together share it by their tokens.
    """

    path: Path
    n_tokens: int
    n_bytes: int
    decoded: int
    decode_seconds: float
    seconds: float


@dataclass(frozen=True)
class JobProgress:
    """``done`` of the ``total`` tokens of job number ``job`` are computed (leads do not count)."""

    job: int
    done: int
    total: int


@dataclass(frozen=True)
class JobDone:
    """The artifact of job number ``job`` is written."""

    job: int
    compiled: Compiled


@dataclass(frozen=True)
class JobSkipped:
    """Job number ``job`` said ``keep_existing``, and its file is there."""

    job: int


@dataclass(frozen=True)
class JobFailed:
    """Job number ``job`` cannot be done; nothing of it was written."""

    job: int
    error: KvnotesError


CompileEvent = JobProgress | JobDone | JobSkipped | JobFailed
CompileListener = Callable[[CompileEvent], None]


@dataclass(frozen=True)
class BatchCost:
    """What ``compile_many`` took. ``decoded``: tokens computed, leads included; ``seconds`` covers everything but the sample.

    ``sample_tokens`` took ``sample_seconds`` with all that makes artifacts of them. Right after, llama.cpp alone decoded them
    a second time, in the same batch sizes and at the same positions, in ``sample_plain_seconds``. All three are 0 where the
    jobs were too few to be worth it.
    """

    decoded: int = 0
    seconds: float = 0.0
    decode_seconds: float = 0.0
    sample_tokens: int = 0
    sample_seconds: float = 0.0
    sample_plain_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        return self.decoded / self.seconds if self.seconds else None

    @property
    def share_of_plain(self) -> float | None:
        """Prefill speed with artifacts made, as a part of llama.cpp's own on the same tokens: 1.0 costs nothing."""
        return self.sample_plain_seconds / self.sample_seconds if self.sample_seconds else None


@dataclass(frozen=True)
class RowCheck:
    """How far ``n_rows`` rows of an artifact are from what the model computes: the distance relative to a row's length, mean
    over keys and values of all layers; of all checked rows the mean and the worst."""

    n_rows: int
    mean_error: float
    worst_error: float


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
        """Number of an unused sequence. Raises EngineError when all are in use."""
        ...

    def free_sequence(self, seq: int) -> None: ...

    def tokens(self, seq: int) -> tuple[int, ...]:
        """Tokens that the sequence holds, in order of position."""
        ...

    def apply(
        self,
        seq: int,
        parts: Sequence[Part],
        *,
        logits: bool = True,
        in_place: bool = True,
        progress: Progress | None = None,
    ) -> Applied:
        """Make the sequence what the plan says.

        ``in_place``: where the context cannot hold old and new rows side by side, the old ones may be taken out first; an error
        then leaves the beginning of the new state. Without it ContextFullError is raised and nothing changes.
        """
        ...

    def check(self, seq: int) -> None:
        """Verify that the cells of a sequence stand at positions 0 … n - 1. Raises EngineError."""
        ...

    def fork(self, seq: int, length: int) -> int:
        """New sequence that shares the first ``length`` cells of ``seq``; nothing is copied.

        A prefix-only model can go back to checkpoints only: its fork holds what the nearest one does (see ``tokens``)."""
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

    def park(self, seq: int, key: str, *, on_disk: bool = False) -> bool:
        """Take a sequence out of the context and keep its state under ``key``; ``on_disk`` also for other processes.

        False where it cannot be kept (no room); the sequence is freed in either case.
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
