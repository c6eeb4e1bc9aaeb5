"""What is asked of the engine to make artifacts, what it tells meanwhile, and what it took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvnotes_local.chat_format.turns import FieldSpan
from kvnotes_local.contract.store_type import StoreType
from kvnotes_local.errors import ArtifactError, KvnotesError
from kvnotes_local.records import Tagged


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


def too_long(job: CompileJob, n_ctx: int) -> ArtifactError | None:
    """What is wrong with a job that does not fit into a context of ``n_ctx`` tokens; None for one that fits."""
    needed = max(map(len, job.leads)) + len(job.tokens)
    if needed <= n_ctx:
        return None
    return ArtifactError(
        f"{job.labels.skill} has {len(job.tokens):,} tokens; with the chat that it is read behind it needs a "
        f"context of {needed:,}, and this one has {n_ctx:,}. Use a larger --n-ctx or split the skill."
    )


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


class JobProgress(Tagged, frozen=True):
    """``done`` of the ``total`` tokens of job number ``job`` are computed (leads do not count)."""

    job: int
    done: int
    total: int


class JobDone(Tagged, frozen=True):
    """The artifact of job number ``job`` is written."""

    job: int
    compiled: Compiled


class JobSkipped(Tagged, frozen=True):
    """Job number ``job`` said ``keep_existing``, and its file is there."""

    job: int


class JobFailed(Tagged, frozen=True):
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
