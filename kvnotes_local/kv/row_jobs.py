"""Conversion of the rows of one cache: a job for each tensor, carried out in pieces of some cells, on several threads."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from kvnotes_local.kv.block_types import block_type, tensor_row_bytes
from kvnotes_local.kv.converter import RowConverter
from kvnotes_local.kv.hadamard import hadamard_in_buffers
from kvnotes_local.kv.layout import CacheLayout, CacheRows, LayerLayout, TensorLayout
from kvnotes_local.kv.rotation import LayerRotation, angles
from kvnotes_local.kv.state import store_rows
from kvnotes_local.kv.state_plan import CacheTarget
from kvnotes_local.kv.turning import TurningTable

_CHUNK_ELEMENTS = 1 << 18
"""Elements converted at a time. Measured on an AMD EPYC with 1 MiB of second-level cache a core: 2^18 are 6 to 17 % faster than
2^16 (fewer calls from Python), 2^20 are slower again."""

_WORTH_A_THREAD = 1 << 20
"""Elements of quantized rows that take longer than starting a thread for them. Others wait for memory, which a second thread
does not make faster (F16: 1,349 million elements a second with one, 1,407 with two)."""


@dataclass(frozen=True)
class RowJob:
    """One tensor's rows that have to be converted. ``turn``: index of its rotation, None where nothing turns."""

    source: NDArray[np.uint8]
    target: NDArray[np.unsignedinteger]
    old: TensorLayout
    new: TensorLayout
    old_block: int
    new_block: int
    turn: int | None = None

    @property
    def is_arithmetic(self) -> bool:
        """Is converting it more work than reading and writing it?"""
        return not self.is_copy and (block_type(self.new.type).block_size > 1 or bool(self.old_block or self.new_block))

    @property
    def is_copy(self) -> bool:
        return self.turn is None and self.old == self.new and self.old_block == self.new_block


def row_jobs(
    cache: CacheRows,
    target: CacheTarget,
    old: CacheLayout,
    new: CacheLayout,
    rotations: tuple[LayerRotation, ...],
    moved: bool,
    kinds: list[LayerRotation],
) -> list[RowJob]:
    """Jobs of one cache. ``moved``: its cells change their positions; distinct rotations are then collected in ``kinds``."""
    known: dict[Hashable, int] = {}
    by_identity: dict[int, int] = {}
    jobs: list[RowJob] = []
    layers: zip[tuple[LayerLayout, LayerLayout, LayerRotation]] = zip(old.layers, new.layers, rotations, strict=True)
    for number, (was, will, layer) in enumerate(layers):
        turn = None
        if moved and layer.n_rot:
            if id(layer) not in by_identity:
                by_identity[id(layer)] = known.setdefault(layer.key, len(kinds))
                if by_identity[id(layer)] == len(kinds):
                    kinds.append(layer)
            turn = by_identity[id(layer)]
        jobs.append(RowJob(cache.k[number], target.k[number], was.k, will.k, old.k_hadamard, new.k_hadamard, turn))
        source, destination = cache.v[number], target.v[number]
        if was.v is not None and will.v is not None and source is not None and destination is not None:
            jobs.append(RowJob(source, destination, was.v, will.v, old.v_hadamard, new.v_hadamard))
    return jobs


@cache
def _thread_pools() -> ThreadpoolController:
    return ThreadpoolController()


def _one_thread_each() -> AbstractContextManager[object]:
    """BLAS, which numpy multiplies matrices with, on the calling thread only: its own threads wait for each other in the many
    small products of a Hadamard transform, which then take twice as long."""
    limited: AbstractContextManager[object] = _thread_pools().limit(limits=1, user_api="blas")
    return limited


class RowJobs:
    """The jobs of one cache, for cells at positions ``old`` that go to ``new``; int32 (n_cells,)."""

    def __init__(
        self,
        jobs: Sequence[RowJob],
        kinds: Sequence[LayerRotation],
        old: NDArray[np.int32],
        new: NDArray[np.int32],
        converter: RowConverter,
    ) -> None:
        self._jobs, self._kinds, self._old, self._new, self._converter = jobs, kinds, old, new, converter
        self._widest = max((job.new.n_embd for job in jobs), default=1)
        distances = new.astype(np.int64) - old
        alike = bool(len(old)) and bool((distances == distances[0]).all())
        self._angle = [angles(kind, distances[:1]) if alike and kind.arithmetic is None else None for kind in kinds]

    def run(self, n_threads: int) -> None:
        """Threads take pieces of the cells, all tensors of a piece one after the other, so that its tables are computed once."""
        n_cells = len(self._old)
        if not n_cells or not self._jobs:
            return
        elements = n_cells * sum(job.new.n_embd for job in self._jobs if job.is_arithmetic)
        n_threads = max(1, min(n_threads, elements // _WORTH_A_THREAD))
        # As many pieces for each thread: one piece too many would keep all but one thread waiting.
        longest = max(1, _CHUNK_ELEMENTS // self._widest)
        n_pieces = n_threads * -(-n_cells // (longest * n_threads))
        step = -(-n_cells // n_pieces)
        starts = range(0, n_cells, step)
        if n_threads == 1:
            with _one_thread_each():
                self._run_pieces(starts, step)
            return
        with ThreadPoolExecutor(n_threads) as pool, _one_thread_each():
            for _ in pool.map(lambda first: self._run_pieces(starts[first::n_threads], step), range(n_threads)):
                pass

    def _run_pieces(self, starts: range, step: int) -> None:
        buffers = np.zeros((2, step * self._widest), np.float32)
        fixed = [
            None if angle is None else TurningTable(kind, angle, step)
            for kind, angle in zip(self._kinds, self._angle, strict=True)
        ]
        # NaN and infinities are for validate_state to report; here they would only litter the terminal.
        with np.errstate(all="ignore"):
            for start in starts:
                chunk = slice(start, min(start + step, len(self._old)))
                tables = [table or self._table(kind, chunk) for kind, table in zip(self._kinds, fixed, strict=True)]
                for job in self._jobs:
                    if job.is_copy:
                        store_rows(job.source[chunk], job.target[chunk])
                    else:
                        table = None if job.turn is None else tables[job.turn]
                        _run_chunk(job, chunk, table, buffers, self._converter)

    def _table(self, kind: LayerRotation, chunk: slice) -> TurningTable:
        turned = angles(kind, self._new[chunk]) - angles(kind, self._old[chunk])
        return TurningTable(kind, turned, chunk.stop - chunk.start)


def _run_chunk(
    job: RowJob, chunk: slice, table: TurningTable | None, buffers: NDArray[np.float32], converter: RowConverter
) -> None:
    m, n = chunk.stop - chunk.start, job.new.n_embd
    now = buffers[0, : m * n].reshape(m, n)
    spare = buffers[1, : m * n].reshape(m, n)
    converter.dequantize(job.old.type, np.ascontiguousarray(job.source[chunk]), now)
    undo, redo = job.old_block, job.new_block
    if table is None and undo == redo:
        undo = redo = 0  # the transform is its own inverse
    now, spare = hadamard_in_buffers(now, undo, spare)
    if table is not None:
        table.turn(now, spare)
    now, spare = hadamard_in_buffers(now, redo, spare)
    target = job.target[chunk]
    if target.dtype == np.uint8:
        converter.quantize(job.new.type, now, target.view(np.uint8))
    else:
        packed = np.empty((m, tensor_row_bytes(job.new)), np.uint8)
        converter.quantize(job.new.type, now, packed)
        store_rows(packed, target)
