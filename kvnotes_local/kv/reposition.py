"""Rows for other positions, another KV type or another cache layout.

The way of every key: stored type → float32 → Hadamard undone → turned by angle(new) - angle(old) → Hadamard of the live
cache → live type. Values are only converted. What needs none of this is copied bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.errors import LayoutError, RotationError
from kvnotes_local.kv.block_types import tensor_row_bytes
from kvnotes_local.kv.converter import NUMPY, RowConverter
from kvnotes_local.kv.hadamard import check_block, hadamard_in_buffers
from kvnotes_local.kv.layout import CacheLayout, CacheRows, LayerLayout, StateLayout, StateRows, TensorLayout
from kvnotes_local.kv.rotation import LayerRotation, ModelRotation, angles, check_rotation
from kvnotes_local.kv.rotation_json import layer_key
from kvnotes_local.kv.state import check_rows, store_rows
from kvnotes_local.kv.state_plan import CacheCells, CacheTarget, allocate_state
from kvnotes_local.kv.turning import TurningTable

Positions = Sequence[NDArray[np.integer]] | int | np.integer
"""New positions of every cache's cells, or one distance by which all cells move."""

_CHUNK_ELEMENTS = 1 << 18
"""Elements converted at a time. Measured on an AMD EPYC with 1 MiB of second-level cache a core: 2^18 are 6 to 17 % faster than
2^16 (fewer calls from Python), 2^20 are slower again."""

_MAX_POSITION = (1 << 31) - 1


def reposition(
    rows: StateRows, to: StateLayout, rotation: ModelRotation, positions: Positions, converter: RowConverter = NUMPY
) -> StateRows:
    """New rows in layout ``to``; ``rows`` stays as it is.

    New positions must be strictly ascending and not negative. Raises LayoutError or RotationError when rows, layout,
    rotation and positions do not fit each other.
    """
    cells = _new_cells(rows, to, rotation, positions)
    targets = [_empty_target(cache, len(c.pos)) for cache, c in zip(to.caches, cells, strict=True)]
    _convert(rows, to, rotation, cells, targets, converter)
    return StateRows(
        to,
        tuple(
            # Targets of new rows are never transposed, so they are bytes.
            CacheRows(c.pos, t.k, tuple(None if v is None else v.view(np.uint8) for v in t.v), c.ext, c.stream)
            for c, t in zip(cells, targets, strict=True)
        ),
    )


def reposition_into(
    rows: StateRows,
    to: StateLayout,
    rotation: ModelRotation,
    positions: Positions,
    converter: RowConverter = NUMPY,
    *,
    seq_id: int = 0,
) -> memoryview:
    """The same as ``write_state(reposition(…), seq_id)``, but the rows go straight into the blob."""
    cells = _new_cells(rows, to, rotation, positions)
    blob, targets = allocate_state(to, cells, seq_id)
    _convert(rows, to, rotation, cells, targets, converter)
    return blob


def _new_cells(rows: StateRows, to: StateLayout, rotation: ModelRotation, positions: Positions) -> list[CacheCells]:
    check_rows(rows)
    _check_conversion(rows.layout, to)
    check_rotation(rotation, to)
    if not isinstance(positions, int | np.integer) and len(positions) != len(rows.caches):
        raise LayoutError(f"positions for {len(positions)} caches, but the rows have {len(rows.caches)}")
    cells = []
    for at, (cache, layout) in enumerate(zip(rows.caches, to.caches, strict=True)):
        old = cache.pos.astype(np.int64)
        if isinstance(positions, int | np.integer):
            new = old + int(positions)
        else:
            new = np.asarray(positions[at]).astype(np.int64)
        if new.shape != old.shape:
            raise LayoutError(f"cache {at}: {new.size} new positions for {old.size} cells")
        if new.size and (new[0] < 0 or new[-1] > _MAX_POSITION or (np.diff(new) <= 0).any()):
            raise LayoutError(f"cache {at}: new positions must be strictly ascending from 0 or above")
        stream = cache.stream if cache.stream < layout.n_stream else 0
        cells.append(CacheCells(new.astype(np.int32), _new_ext(cache, new - old), stream))
    return cells


def _new_ext(cache: CacheRows, distance: NDArray[np.int64]) -> NDArray[np.int32] | None:
    """Text cells carry their position again as x and y (or 0 when restored as such): move it along."""
    if cache.ext is None:
        return None
    ext = cache.ext.astype(np.int64)
    place = ext[:, :2]
    follows = (place == cache.pos[:, None]).all(axis=1)
    if (~follows & (place != 0).any(axis=1) & (distance != 0)).any():
        raise RotationError("cells of an image have positions of their own and cannot be moved; leave images out")
    place[follows] += distance[follows, None]
    return ext.astype(np.int32)


def _check_conversion(source: StateLayout, to: StateLayout) -> None:
    def sizes(layout: StateLayout) -> list[list[tuple[int, int | None]]]:
        return [[(y.k.n_embd, None if y.v is None else y.v.n_embd) for y in c.layers] for c in layout.caches]

    if sizes(source) != sizes(to):
        raise LayoutError("rows and context belong to different models: number or size of the layers differs")
    for old, new in zip(source.caches, to.caches, strict=True):
        if old.has_ext != new.has_ext:
            raise LayoutError("rows and context belong to different models: only one has M-RoPE positions")
        for cache in (old, new):
            for layer in cache.layers:
                check_block(cache.k_hadamard, layer.k.n_embd)
                check_block(cache.v_hadamard, 0 if layer.v is None else layer.v.n_embd)


def _empty_target(cache: CacheLayout, n: int) -> CacheTarget:
    return CacheTarget(
        tuple(np.empty((n, tensor_row_bytes(y.k)), np.uint8) for y in cache.layers),
        tuple(None if y.v is None else np.empty((n, tensor_row_bytes(y.v)), np.uint8) for y in cache.layers),
    )


@dataclass(frozen=True)
class _Job:
    """One tensor's rows that have to be converted. ``turn``: index of its rotation, None where nothing turns."""

    source: NDArray[np.uint8]
    target: NDArray[np.unsignedinteger]
    old: TensorLayout
    new: TensorLayout
    old_block: int
    new_block: int
    turn: int | None = None

    @property
    def is_copy(self) -> bool:
        return self.turn is None and self.old == self.new and self.old_block == self.new_block


def _convert(
    rows: StateRows,
    to: StateLayout,
    rotation: ModelRotation,
    cells: Sequence[CacheCells],
    targets: Sequence[CacheTarget],
    converter: RowConverter,
) -> None:
    for at, (cache, target) in enumerate(zip(rows.caches, targets, strict=True)):
        moved = bool((cache.pos != cells[at].pos).any())
        kinds: list[LayerRotation] = []
        jobs = []
        for job in _jobs(cache, target, rows.layout.caches[at], to.caches[at], rotation.caches[at], moved, kinds):
            if job.is_copy:
                store_rows(job.source, job.target)
            else:
                jobs.append(job)
        if jobs and len(cache.pos):
            # NaN and infinities are for validate_state to report; here they would only litter the terminal.
            with np.errstate(all="ignore"):
                _run(jobs, kinds, cache.pos, cells[at].pos, converter)


def _jobs(
    cache: CacheRows,
    target: CacheTarget,
    old: CacheLayout,
    new: CacheLayout,
    rotations: tuple[LayerRotation, ...],
    moved: bool,
    kinds: list[LayerRotation],
) -> list[_Job]:
    """Jobs of one cache; distinct rotations are collected in ``kinds``."""
    known: dict[str, int] = {}
    by_identity: dict[int, int] = {}
    jobs: list[_Job] = []
    layers: zip[tuple[LayerLayout, LayerLayout, LayerRotation]] = zip(old.layers, new.layers, rotations, strict=True)
    for number, (was, will, layer) in enumerate(layers):
        turn = None
        if moved and layer.n_rot:
            if id(layer) not in by_identity:
                by_identity[id(layer)] = known.setdefault(layer_key(layer), len(kinds))
                if by_identity[id(layer)] == len(kinds):
                    kinds.append(layer)
            turn = by_identity[id(layer)]
        jobs.append(_Job(cache.k[number], target.k[number], was.k, will.k, old.k_hadamard, new.k_hadamard, turn))
        source, destination = cache.v[number], target.v[number]
        if was.v is not None and will.v is not None and source is not None and destination is not None:
            jobs.append(_Job(source, destination, was.v, will.v, old.v_hadamard, new.v_hadamard))
    return jobs


def _run(
    jobs: Sequence[_Job],
    kinds: Sequence[LayerRotation],
    old: NDArray[np.int32],
    new: NDArray[np.int32],
    converter: RowConverter,
) -> None:
    widest = max(job.new.n_embd for job in jobs)
    step = max(1, _CHUNK_ELEMENTS // max(1, widest))
    buffers = np.zeros((2, min(step, len(old)) * widest), np.float32)
    distances = new.astype(np.int64) - old
    alike = bool((distances == distances[0]).all())
    fixed = [
        TurningTable(kind, angles(kind, distances[:1]), min(step, len(old)))
        if alike and kind.arithmetic is None
        else None
        for kind in kinds
    ]
    for start in range(0, len(old), step):
        chunk = slice(start, min(start + step, len(old)))
        # All layers of a chunk share its tables, which are thus computed once and stay in the cache.
        tables = [
            table or TurningTable(kind, angles(kind, new[chunk]) - angles(kind, old[chunk]), chunk.stop - chunk.start)
            for kind, table in zip(kinds, fixed, strict=True)
        ]
        for job in jobs:
            _run_chunk(job, chunk, None if job.turn is None else tables[job.turn], buffers, converter)


def _run_chunk(
    job: _Job, chunk: slice, table: TurningTable | None, buffers: NDArray[np.float32], converter: RowConverter
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
