"""Reading the structure of a sequence-state blob: every count is checked against the bytes before it is used.

Mirrors src/llama-kv-cache.cpp (``state_read``, ``state_read_meta``, ``state_read_data``), which trusts its input.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvnotes_local.errors import LayoutError, StateFormatError
from kvnotes_local.kv.block_types import block_type
from kvnotes_local.kv.layout import CacheLayout, GGMLType, LayerLayout, TensorLayout
from kvnotes_local.kv.state_plan import (
    DATA_HEADER,
    HEADER,
    MAGIC,
    MAX_STREAMS,
    ROWS_HEADER,
    TRANSPOSED_HEADER,
    U32,
    CacheSpans,
    cell_dtype,
)

Blob = bytes | bytearray | memoryview
HasValues = Callable[[int], bool]
"""Says for the layer with a given index whether values are stored for it."""

_MAX_ELEMENTS = 1 << 24
"""Elements of a row; far above any model, and low enough that products of counts stay harmless."""


class Cursor:
    """A position in a blob that cannot leave it."""

    def __init__(self, blob: Blob, at: int = 0) -> None:
        self.blob = memoryview(blob).cast("B")
        self.at = at

    def skip(self, n_bytes: int, what: str) -> int:
        """Step over ``n_bytes`` and return where they start. Raises StateFormatError when the blob is shorter."""
        start = self.at
        if n_bytes > len(self.blob) - start:
            raise StateFormatError(
                f"the state ends early: {what} at byte {start} needs {n_bytes} bytes, "
                f"{len(self.blob) - start} are left; save the state again"
            )
        self.at = start + n_bytes
        return start

    def read(self, form: struct.Struct, what: str) -> tuple[int, ...]:
        return form.unpack_from(self.blob, self.skip(form.size, what))


@dataclass(frozen=True)
class ScannedCache:
    """Structure found for one cache. An empty one does not show its layers, and ``layout.layers`` is ()."""

    layout: CacheLayout
    spans: CacheSpans


def as_bytes_view(blob: Blob) -> memoryview:
    """The blob as a flat view of bytes. Raises StateFormatError for memory that is not contiguous."""
    view = memoryview(blob)
    if not view.c_contiguous:
        raise StateFormatError("the state is not one contiguous piece of memory; copy it into bytes first")
    return view.cast("B")


def scan_header(cursor: Cursor) -> int:
    """Check the magic number and return the sequence id."""
    magic, seq_id = cursor.read(HEADER, "the header")
    if magic != MAGIC:
        raise StateFormatError(
            f"not a llama.cpp sequence state: it starts with {magic:#010x} instead of {MAGIC:#010x}; "
            "use what llama_state_seq_get_data returned, not a session file"
        )
    if not 0 <= seq_id < MAX_STREAMS:
        raise StateFormatError(f"sequence id {seq_id} in the state's header; llama.cpp has 0 to {MAX_STREAMS - 1}")
    return seq_id


def scan_cache(cursor: Cursor, seq_id: int, has_ext: bool, has_values: HasValues, where: str) -> ScannedCache:
    """Read one cache's structure and leave the cursor behind it. Raises StateFormatError where it cannot be one."""
    (n_stream,) = cursor.read(U32, f"{where}: the number of streams")
    if not 1 <= n_stream <= MAX_STREAMS:
        raise StateFormatError(f"{where}: {n_stream} streams; llama.cpp has 1 to {MAX_STREAMS}")
    found: ScannedCache | None = None
    for stream in range(n_stream):
        (n_cells,) = cursor.read(U32, f"{where}: the number of cells")
        if not n_cells:
            continue
        if found is not None:
            raise StateFormatError(f"{where}: one sequence has cells in several streams; restoring it would lose some")
        spans_cells = _scan_cells(cursor, n_cells, seq_id, has_ext, where)
        found = _scan_data(cursor, n_stream, stream, n_cells, spans_cells, has_ext, has_values, where)
    if found is None:
        empty = CacheLayout((), has_ext=has_ext, n_stream=n_stream)
        return ScannedCache(empty, CacheSpans(0, 0, cursor.at, cursor.at, (), ()))
    return found


def _scan_cells(cursor: Cursor, n_cells: int, seq_id: int, has_ext: bool, where: str) -> int:
    dtype = cell_dtype(has_ext)
    start = cursor.skip(n_cells * dtype.itemsize, f"{where}: a table of {n_cells} cells")
    cells = np.frombuffer(cursor.blob, dtype, n_cells, start)
    if (cells["n_seq_id"] != 1).any():
        raise StateFormatError(f"{where}: a cell does not belong to exactly one sequence")
    if (cells["seq_id"] != seq_id).any():
        raise StateFormatError(f"{where}: a cell belongs to another sequence than {seq_id}, which the header names")
    if (cells["pos"] < 0).any():
        raise StateFormatError(f"{where}: a cell has a negative position")
    return start


def _scan_data(
    cursor: Cursor,
    n_stream: int,
    stream: int,
    n_cells: int,
    cells_at: int,
    has_ext: bool,
    has_values: HasValues,
    where: str,
) -> ScannedCache:
    v_trans, n_layer = cursor.read(DATA_HEADER, f"{where}: the layer count")
    if v_trans > 1:
        raise StateFormatError(f"{where}: the transposition flag is {v_trans}, neither 0 nor 1")
    if n_layer * ROWS_HEADER.size > len(cursor.blob) - cursor.at:
        raise StateFormatError(f"{where}: {n_layer} layers do not fit into the bytes that are left")
    keys = [_scan_rows(cursor, n_cells, f"{where}, layer {i}, keys") for i in range(n_layer)]
    values: list[tuple[TensorLayout, int] | None] = []
    for i in range(n_layer):
        at = f"{where}, layer {i}, values"
        if not has_values(i):
            values.append(None)
        elif v_trans:
            values.append(_scan_transposed(cursor, n_cells, at))
        else:
            values.append(_scan_rows(cursor, n_cells, at))
    layers = tuple(LayerLayout(k[0], None if v is None else v[0]) for k, v in zip(keys, values, strict=True))
    v_spans = tuple(None if v is None else v[1] for v in values)
    return ScannedCache(
        CacheLayout(layers, v_trans=bool(v_trans), has_ext=has_ext, n_stream=n_stream),
        CacheSpans(n_cells, stream, cells_at, cursor.at, tuple(k[1] for k in keys), v_spans),
    )


def _known_type(value: int, where: str) -> GGMLType:
    try:
        return GGMLType(value)
    except ValueError:
        raise StateFormatError(f"{where}: tensor type {value} is none that a KV cache can have") from None


def _scan_rows(cursor: Cursor, n_cells: int, where: str) -> tuple[TensorLayout, int]:
    type_id, row_bytes = cursor.read(ROWS_HEADER, where)
    type = _known_type(type_id, where)
    try:
        n_embd = block_type(type).n_elements(row_bytes)
    except LayoutError as error:
        raise StateFormatError(f"{where}: {error}") from None
    if n_embd > _MAX_ELEMENTS:
        raise StateFormatError(f"{where}: rows of {n_embd} elements; no model has such")
    return TensorLayout(type, n_embd), cursor.skip(n_cells * row_bytes, f"{where}: {n_cells} rows")


def _scan_transposed(cursor: Cursor, n_cells: int, where: str) -> tuple[TensorLayout, int]:
    type_id, element_bytes, n_embd = cursor.read(TRANSPOSED_HEADER, where)
    type = _known_type(type_id, where)
    block = block_type(type)
    if block.block_size != 1 or block.type_size != element_bytes:
        raise StateFormatError(f"{where}: transposed {type.name} elements of {element_bytes} bytes")
    if n_embd > _MAX_ELEMENTS:
        raise StateFormatError(f"{where}: rows of {n_embd} elements; no model has such")
    return TensorLayout(type, n_embd), cursor.skip(n_embd * element_bytes * n_cells, f"{where}: {n_cells} rows")
