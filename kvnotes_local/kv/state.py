"""Sequence-state blobs to rows and back (``llama_state_seq_get_data`` / ``llama_state_seq_set_data``)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.errors import LayoutError, StateFormatError
from kvnotes_local.kv.block_types import block_type, tensor_row_bytes
from kvnotes_local.kv.layout import CacheLayout, CacheRows, StateLayout, StateRows, TensorLayout
from kvnotes_local.kv.state_plan import (
    CacheCells,
    allocate_state,
    cell_dtype,
    check_layout,
    state_bytes,
    transposed_view,
)
from kvnotes_local.kv.state_scan import Blob, Cursor, HasValues, ScannedCache, as_bytes_view, scan_cache, scan_header

__all__ = ["infer_layout", "parse_state", "state_bytes", "validate_state", "write_state"]

_MAX_CACHES = 3
_CHECK_BYTES = 1 << 20


def parse_state(blob: Blob, layout: StateLayout) -> StateRows:
    """Rows of a blob that was taken from a context with ``layout``.

    Key rows are views of ``blob``, and so are value rows unless they are stored transposed. llama.cpp writes cells in
    the order in which they lie in the cache; where that is not the order of positions, all rows are copied in the order
    of positions. Raises StateFormatError for bytes that are no such state (every byte must be accounted for) and
    LayoutError for a layout that cannot be.
    """
    check_layout(layout)
    view = as_bytes_view(blob)
    return StateRows(
        layout, tuple(_rows(view, cache, scan) for cache, scan in zip(layout.caches, _scan(view, layout), strict=True))
    )


def validate_state(blob: Blob, layout: StateLayout, *, n_cells_max: int, check_values: bool = False) -> None:
    """Raise StateFormatError for anything that restoring the blob into a context with ``layout`` could choke on.

    ``n_cells_max``: cells of the context's caches. ``check_values``: also look for NaN and infinities, in float rows
    and in the scales of quantized blocks.
    """
    check_layout(layout)
    view = as_bytes_view(blob)
    for at, (cache, scan) in enumerate(zip(layout.caches, _scan(view, layout), strict=True)):
        if scan.spans.n_cells > n_cells_max:
            raise StateFormatError(
                f"cache {at}: {scan.spans.n_cells} cells do not fit into a context of {n_cells_max}; raise --n-ctx"
            )
        _positions(view, cache.has_ext, scan, f"cache {at}")
        if check_values:
            _check_values(view, cache, scan, f"cache {at}")


def write_state(rows: StateRows, seq_id: int = 0) -> memoryview:
    """The blob that holds ``rows``, as writable bytes.

    Raises LayoutError when rows and their layout do not fit each other.
    """
    check_rows(rows)
    cells = [CacheCells(cache.pos, cache.ext, cache.stream) for cache in rows.caches]
    blob, targets = allocate_state(rows.layout, cells, seq_id)
    for cache, target in zip(rows.caches, targets, strict=True):
        for source, destination in zip((*cache.k, *cache.v), (*target.k, *target.v), strict=True):
            if source is not None and destination is not None:
                store_rows(source, destination)
    return blob


def store_rows(rows: NDArray[np.uint8], target: NDArray[np.unsignedinteger]) -> None:
    """Copy uint8 (n, row_bytes) into rows of a CacheTarget, transposed or not."""
    if target.itemsize == 1:
        target[...] = rows
    else:
        target[...] = np.ascontiguousarray(rows).view(target.dtype)


def infer_layout(blob: Blob) -> StateLayout:
    """The layout of a blob from an unknown context, found by trying what llama.cpp can write.

    Tried are 1 to 3 caches, cells with and without M-RoPE positions, and caches with and without values; exactly one
    reading must account for every byte. Hadamard blocks are 0, since the blob does not tell. The layers of an empty
    cache cannot be seen; they are returned as none. Raises StateFormatError for a wrong header, LayoutError when no
    reading or more than one fits, or when all caches are empty.
    """
    view = as_bytes_view(blob)
    header = Cursor(view)
    seq_id = scan_header(header)
    fits: dict[StateLayout, None] = {}
    tried: list[str] = []
    for has_ext in (False, True):
        open_readings: list[tuple[int, tuple[CacheLayout, ...], bool]] = [(header.at, (), False)]
        while open_readings:
            at, caches, any_cells = open_readings.pop()
            if at == len(view) and caches:
                if any_cells:
                    fits[StateLayout(caches)] = None
                else:
                    tried.append("all caches empty")
                continue
            if len(caches) == _MAX_CACHES:
                tried.append(f"{_MAX_CACHES} caches leave {len(view) - at} bytes over")
                continue
            for has_v in (True, False):
                cursor = Cursor(view, at)
                where = f"cache {len(caches)} with{'' if has_v else 'out'} values, with{'' if has_ext else 'out'} ext"
                try:
                    scan = scan_cache(cursor, seq_id, has_ext, _constant(has_v), where)
                except StateFormatError as error:
                    tried.append(str(error))
                    continue
                open_readings.append((cursor.at, (*caches, scan.layout), any_cells or scan.spans.n_cells > 0))
    if len(fits) == 1:
        return next(iter(fits))
    if fits:
        raise LayoutError(f"the state can be read as {len(fits)} different layouts; decode a few tokens more and retry")
    raise LayoutError("no known cache layout accounts for the state; tried: " + "; ".join(dict.fromkeys(tried)))


def check_rows(rows: StateRows) -> None:
    """Raise LayoutError when shapes, counts or positions of ``rows`` contradict their layout."""
    check_layout(rows.layout)
    if len(rows.caches) != len(rows.layout.caches):
        raise LayoutError(f"rows of {len(rows.caches)} caches with a layout of {len(rows.layout.caches)}")
    for at, (cache, layout) in enumerate(zip(rows.caches, rows.layout.caches, strict=True)):
        n = len(cache.pos)
        if len(cache.k) != len(layout.layers) or len(cache.v) != len(layout.layers):
            raise LayoutError(f"cache {at}: rows of {len(cache.k)} layers with a layout of {len(layout.layers)}")
        if (cache.ext is not None) != layout.has_ext or (cache.ext is not None and cache.ext.shape != (n, 3)):
            raise LayoutError(f"cache {at}: M-RoPE positions do not fit the layout")
        if n and (cache.pos[0] < 0 or (np.diff(cache.pos.astype(np.int64)) <= 0).any()):
            raise LayoutError(f"cache {at}: positions are not strictly ascending from 0 or above")
        for number, layer in enumerate(layout.layers):
            _check_shape(cache.k[number], layer.k, n, f"cache {at}, layer {number}, keys")
            _check_shape(cache.v[number], layer.v, n, f"cache {at}, layer {number}, values")


def _check_shape(rows: NDArray[np.uint8] | None, tensor: TensorLayout | None, n: int, where: str) -> None:
    wanted = None if tensor is None else (n, tensor_row_bytes(tensor))
    found = None if rows is None else rows.shape
    if wanted != found or (rows is not None and rows.dtype != np.uint8):
        raise LayoutError(f"{where}: rows of shape {found} where the layout says {wanted}")


def _constant(value: bool) -> HasValues:
    return lambda _layer: value


def _scan(view: memoryview, layout: StateLayout) -> list[ScannedCache]:
    """Structure of all caches, equal to ``layout`` and without a byte left over."""
    cursor = Cursor(view)
    seq_id = scan_header(cursor)
    scans = []
    for at, cache in enumerate(layout.caches):
        layers = cache.layers
        scan = scan_cache(
            cursor,
            seq_id,
            cache.has_ext,
            lambda i, layers=layers: i < len(layers) and layers[i].v is not None,  # type: ignore[misc]
            f"cache {at}",
        )
        _check_same(scan, cache, f"cache {at}")
        scans.append(scan)
    if cursor.at != len(view):
        raise StateFormatError(f"{len(view) - cursor.at} bytes follow the state; it was saved by another kind of model")
    return scans


def _check_same(scan: ScannedCache, wanted: CacheLayout, where: str) -> None:
    found = scan.layout
    if found.n_stream != wanted.n_stream:
        raise StateFormatError(f"{where}: {found.n_stream} streams, but the context has {wanted.n_stream}")
    if not scan.spans.n_cells:
        return
    if found.v_trans != wanted.v_trans:
        raise StateFormatError(
            f"{where}: values are transposed here and not there; use the same flash-attention setting"
        )
    if len(found.layers) != len(wanted.layers):
        raise StateFormatError(f"{where}: {len(found.layers)} layers, but the model has {len(wanted.layers)}")
    for number, (here, there) in enumerate(zip(found.layers, wanted.layers, strict=True)):
        if here != there:
            raise StateFormatError(
                f"{where}, layer {number}: {_describe(here.k)} keys and {_describe(here.v)} values, but the context "
                f"has {_describe(there.k)} and {_describe(there.v)}; it was saved by another model or KV type"
            )


def _describe(tensor: TensorLayout | None) -> str:
    return "no" if tensor is None else f"{tensor.type.name}×{tensor.n_embd}"


def _positions(
    view: memoryview, has_ext: bool, scan: ScannedCache, where: str
) -> tuple[NDArray[np.void], NDArray[np.intp] | None]:
    """The cell table and the order of positions, None where that is the order in the blob."""
    cells = np.frombuffer(view, cell_dtype(has_ext), scan.spans.n_cells, scan.spans.cells)
    steps = np.diff(cells["pos"])
    if (steps > 0).all():
        return cells, None
    order = np.argsort(cells["pos"], kind="stable")
    if (np.diff(cells["pos"][order]) == 0).any():
        raise StateFormatError(f"{where}: two cells have the same position; states with images cannot be read")
    return cells, order


def _rows(view: memoryview, cache: CacheLayout, scan: ScannedCache) -> CacheRows:
    n = scan.spans.n_cells
    if not n:
        k0 = tuple(np.empty((0, tensor_row_bytes(y.k)), np.uint8) for y in cache.layers)
        v0 = tuple(None if y.v is None else np.empty((0, tensor_row_bytes(y.v)), np.uint8) for y in cache.layers)
        return CacheRows(np.empty(0, np.int32), k0, v0, np.empty((0, 3), np.int32) if cache.has_ext else None)
    cells, order = _positions(view, cache.has_ext, scan, "a cache")
    k = tuple(_tensor(view, y.k, at, n) for y, at in zip(cache.layers, scan.spans.k, strict=True))
    v = tuple(
        None if y.v is None or at is None else _tensor(view, y.v, at, n, cache.v_trans)
        for y, at in zip(cache.layers, scan.spans.v, strict=True)
    )
    pos = np.ascontiguousarray(cells["pos"], dtype=np.int32)
    ext = np.ascontiguousarray(cells["ext"], dtype=np.int32) if cache.has_ext else None
    rows = CacheRows(pos, k, v, ext, scan.spans.stream)
    return rows if order is None else take_cells(rows, order)


def take_cells(rows: CacheRows, which: NDArray[np.intp] | NDArray[np.bool_] | slice) -> CacheRows:
    """Some of the cells: views for a slice, else copies."""
    return replace(
        rows,
        pos=rows.pos[which],
        k=tuple(k[which] for k in rows.k),
        v=tuple(None if v is None else v[which] for v in rows.v),
        ext=None if rows.ext is None else rows.ext[which],
    )


def _tensor(view: memoryview, tensor: TensorLayout, at: int, n: int, transposed: bool = False) -> NDArray[np.uint8]:
    row = tensor_row_bytes(tensor)
    if transposed:
        elements = transposed_view(view, at, block_type(tensor.type).type_size, tensor.n_embd, n)
        return np.ascontiguousarray(elements).view(np.uint8).reshape(n, row)
    return np.frombuffer(view, np.uint8, n * row, at).reshape(n, row)


def _check_values(view: memoryview, cache: CacheLayout, scan: ScannedCache, where: str) -> None:
    n = scan.spans.n_cells
    if not n:
        return
    for number, (layer, k, v) in enumerate(zip(cache.layers, scan.spans.k, scan.spans.v, strict=True)):
        for tensor, at, what in ((layer.k, k, "keys"), (layer.v, v, "values")):
            if tensor is None or at is None:
                continue
            block = block_type(tensor.type)
            total = n * block.row_bytes(tensor.n_embd)
            step = _CHECK_BYTES // block.type_size * block.type_size
            for start in range(0, total, step):
                part = np.frombuffer(view, np.uint8, min(step, total - start), at + start)
                if not block.all_finite(part):
                    raise StateFormatError(f"{where}, layer {number}: NaN or infinity among the {what}")
