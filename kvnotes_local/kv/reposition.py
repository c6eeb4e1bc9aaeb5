"""Rows for other positions, another KV type or another cache layout.

The way of every key: stored type → float32 → Hadamard undone → turned by angle(new) - angle(old) → Hadamard of the live
cache → live type. Values are only converted. What needs none of this is copied bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.errors import LayoutError, RotationError
from kvnotes_local.kv.block_types import tensor_row_bytes
from kvnotes_local.kv.converter import NUMPY, RowConverter
from kvnotes_local.kv.hadamard import check_block
from kvnotes_local.kv.layout import CacheLayout, CacheRows, StateLayout, StateRows
from kvnotes_local.kv.rotation import LayerRotation, ModelRotation, check_rotation
from kvnotes_local.kv.row_jobs import RowJobs, row_jobs
from kvnotes_local.kv.state import check_rows
from kvnotes_local.kv.state_plan import CacheCells, CacheTarget, allocate_state

Positions = Sequence[NDArray[np.integer]] | int | np.integer
"""New positions of every cache's cells, or one distance by which all cells move."""

_MAX_POSITION = (1 << 31) - 1


def reposition(
    rows: StateRows,
    to: StateLayout,
    rotation: ModelRotation,
    positions: Positions,
    converter: RowConverter = NUMPY,
    *,
    n_threads: int = 1,
) -> StateRows:
    """New rows in layout ``to``; ``rows`` stays as it is.

    New positions must be strictly ascending and not negative. Raises LayoutError or RotationError when rows, layout,
    rotation and positions do not fit each other.
    """
    cells = _new_cells(rows, to, rotation, positions)
    targets = [_empty_target(cache, len(c.pos)) for cache, c in zip(to.caches, cells, strict=True)]
    _convert(rows, to, rotation, cells, targets, converter, n_threads)
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
    n_threads: int = 1,
    buffer: NDArray[np.uint8] | None = None,
) -> memoryview:
    """The same as ``write_state(reposition(…), seq_id)``, but the rows go straight into the blob, which is the beginning of
    ``buffer`` where that is large enough."""
    cells = _new_cells(rows, to, rotation, positions)
    blob, targets = allocate_state(to, cells, seq_id, buffer)
    _convert(rows, to, rotation, cells, targets, converter, n_threads)
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


def _convert(
    rows: StateRows,
    to: StateLayout,
    rotation: ModelRotation,
    cells: Sequence[CacheCells],
    targets: Sequence[CacheTarget],
    converter: RowConverter,
    n_threads: int,
) -> None:
    for at, (cache, target) in enumerate(zip(rows.caches, targets, strict=True)):
        moved = bool((cache.pos != cells[at].pos).any())
        kinds: list[LayerRotation] = []
        jobs = row_jobs(cache, target, rows.layout.caches[at], to.caches[at], rotation.caches[at], moved, kinds)
        RowJobs(jobs, kinds, cache.pos, cells[at].pos, converter).run(n_threads)
