"""Where everything lies in a sequence-state blob: sizes, and a new blob of exactly the right size with its headers.

Format (src/llama-kv-cache.cpp, ``state_write``): u32 magic, i32 seq_id, then each cache: u32 n_stream, per stream
u32 cell count; nothing more for an empty stream. Else the cells, u32 v_trans, u32 n_layer, per layer i32 type, u64 row
bytes and the key rows; then the values likewise, or for v_trans per layer i32 type, u32 element bytes, u32 n_embd and
the values element by element.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.errors import LayoutError
from kvnotes_local.kv.block_types import block_type, tensor_row_bytes
from kvnotes_local.kv.layout import CacheLayout, StateLayout

MAGIC = 0xAF143CD8
MAX_STREAMS = 256
HEADER = struct.Struct("<Ii")
U32 = struct.Struct("<I")
DATA_HEADER = struct.Struct("<II")
ROWS_HEADER = struct.Struct("<iQ")
TRANSPOSED_HEADER = struct.Struct("<iII")

CELL = np.dtype([("pos", "<i4"), ("n_seq_id", "<u4"), ("seq_id", "<i4")])
EXT_CELL = np.dtype([("pos", "<i4"), ("n_seq_id", "<u4"), ("ext", "<i4", (3,)), ("seq_id", "<i4")])


def cell_dtype(has_ext: bool) -> np.dtype[np.void]:
    """Structured dtype of one cell that belongs to one sequence."""
    return EXT_CELL if has_ext else CELL


@dataclass(frozen=True)
class CacheCells:
    """The cells that a blob shall hold for one cache: the part of CacheRows that is not keys and values."""

    pos: NDArray[np.int32]
    ext: NDArray[np.int32] | None = None
    stream: int = 0


@dataclass(frozen=True)
class CacheSpans:
    """Byte offsets of one cache's data in a blob; offsets are of the first data byte after the respective header.

    ``end``: behind the last value, where the cell counts of the remaining streams stand.
    """

    n_cells: int
    stream: int
    cells: int
    end: int
    k: tuple[int, ...]
    v: tuple[int | None, ...]


@dataclass(frozen=True)
class CacheTarget:
    """Writable views of one cache's keys and values in a new blob.

    ``k[layer]``: uint8 (n, row_bytes). ``v[layer]``: likewise, or for transposed values a strided view (n, n_embd) of
    unsigned integers as wide as an element; None for a layer without values.
    """

    k: tuple[NDArray[np.uint8], ...]
    v: tuple[NDArray[np.unsignedinteger] | None, ...]


def check_layout(layout: StateLayout) -> None:
    """Raise LayoutError for a layout that no llama.cpp context can have."""
    for at, cache in enumerate(layout.caches):
        if not 1 <= cache.n_stream <= MAX_STREAMS:
            raise LayoutError(f"cache {at}: {cache.n_stream} streams; llama.cpp has 1 to {MAX_STREAMS}")
        for number, layer in enumerate(cache.layers):
            tensor_row_bytes(layer.k)
            if layer.v is None:
                continue
            tensor_row_bytes(layer.v)
            if cache.v_trans and block_type(layer.v.type).block_size != 1:
                raise LayoutError(
                    f"cache {at}, layer {number}: {layer.v.type.name} values cannot be stored transposed; "
                    "turn flash attention on, or choose F16 values"
                )


def _cache_spans(cache: CacheLayout, n_cells: int, stream: int, offset: int) -> tuple[CacheSpans, int]:
    """Spans of one cache that starts at ``offset`` and the offset behind it."""
    offset += U32.size * (2 + stream)
    k: list[int] = []
    v: list[int | None] = []
    cells = offset
    if n_cells:
        offset += n_cells * cell_dtype(cache.has_ext).itemsize + DATA_HEADER.size
        for layer in cache.layers:
            offset += ROWS_HEADER.size
            k.append(offset)
            offset += n_cells * tensor_row_bytes(layer.k)
        for layer in cache.layers:
            if layer.v is None:
                v.append(None)
                continue
            offset += TRANSPOSED_HEADER.size if cache.v_trans else ROWS_HEADER.size
            v.append(offset)
            offset += n_cells * tensor_row_bytes(layer.v)
    spans = CacheSpans(n_cells, stream, cells, offset, tuple(k), tuple(v))
    return spans, offset + U32.size * (cache.n_stream - stream - 1)


def plan_state(
    layout: StateLayout, n_cells: Sequence[int], streams: Sequence[int] | None = None
) -> tuple[tuple[CacheSpans, ...], int]:
    """Spans of all caches for the given numbers of cells, and the size of the whole blob in bytes.

    Raises LayoutError when the counts do not fit the layout.
    """
    check_layout(layout)
    if len(n_cells) != len(layout.caches):
        raise LayoutError(f"{len(n_cells)} cell counts for a model with {len(layout.caches)} caches")
    streams = [0] * len(n_cells) if streams is None else streams
    offset = HEADER.size
    spans = []
    for cache, n, stream in zip(layout.caches, n_cells, streams, strict=True):
        if n < 0 or n >= 1 << 32:
            raise LayoutError(f"{n} cells: a cache holds 0 to 2**32 - 1")
        if not 0 <= stream < cache.n_stream:
            raise LayoutError(f"stream {stream} does not exist in a cache with {cache.n_stream} streams")
        span, offset = _cache_spans(cache, n, stream, offset)
        spans.append(span)
    return tuple(spans), offset


def state_bytes(layout: StateLayout, n_cells_per_cache: Sequence[int]) -> int:
    """Size of a blob in bytes. Raises LayoutError when the counts do not fit the layout."""
    return plan_state(layout, n_cells_per_cache)[1]


def allocate_state(
    layout: StateLayout, cells: Sequence[CacheCells], seq_id: int = 0, buffer: NDArray[np.uint8] | None = None
) -> tuple[memoryview, tuple[CacheTarget, ...]]:
    """A blob with all headers and cells written, and views to write keys and values into: those bytes are arbitrary.

    ``buffer``: uint8 (n,), whose beginning becomes the blob where it is large enough. Raises LayoutError when cells and
    layout do not fit each other.
    """
    if not 0 <= seq_id < MAX_STREAMS:
        raise LayoutError(f"sequence id {seq_id}: llama.cpp has 0 to {MAX_STREAMS - 1}")
    spans, size = plan_state(layout, [len(c.pos) for c in cells], [c.stream for c in cells])
    # Not a bytearray: numpy asks for huge pages and writes no zeros first, which saves two thirds of the time.
    blob = (buffer[:size] if buffer is not None and size <= len(buffer) else np.empty(size, np.uint8)).data
    HEADER.pack_into(blob, 0, MAGIC, seq_id)
    targets = []
    for cache, cell, span in zip(layout.caches, cells, spans, strict=True):
        _write_cells(blob, cache, cell, span, seq_id)
        targets.append(_write_headers(blob, cache, span))
    return blob, tuple(targets)


def _write_cells(blob: memoryview, cache: CacheLayout, cells: CacheCells, span: CacheSpans, seq_id: int) -> None:
    if (cells.ext is not None) != cache.has_ext:
        raise LayoutError("cells carry M-RoPE positions but the cache has none, or the other way round")
    counts = [0] * cache.n_stream
    counts[span.stream] = span.n_cells
    first = span.cells - U32.size * (1 + span.stream)
    struct.pack_into(f"<{2 + span.stream}I", blob, first - U32.size, cache.n_stream, *counts[: span.stream + 1])
    struct.pack_into(f"<{len(counts) - span.stream - 1}I", blob, span.end, *counts[span.stream + 1 :])
    if not span.n_cells:
        return
    table = np.frombuffer(blob, cell_dtype(cache.has_ext), span.n_cells, span.cells)
    table["pos"] = cells.pos
    table["n_seq_id"] = 1
    table["seq_id"] = seq_id
    if cells.ext is not None:
        table["ext"] = cells.ext
    DATA_HEADER.pack_into(blob, span.cells + table.nbytes, int(cache.v_trans), len(cache.layers))


def _write_headers(blob: memoryview, cache: CacheLayout, span: CacheSpans) -> CacheTarget:
    if not span.n_cells:
        k0 = tuple(np.empty((0, tensor_row_bytes(layer.k)), np.uint8) for layer in cache.layers)
        v0 = tuple(None if y.v is None else np.empty((0, tensor_row_bytes(y.v)), np.uint8) for y in cache.layers)
        return CacheTarget(k0, v0)
    k: list[NDArray[np.uint8]] = []
    v: list[NDArray[np.unsignedinteger] | None] = []
    for layer, at in zip(cache.layers, span.k, strict=True):
        row = tensor_row_bytes(layer.k)
        ROWS_HEADER.pack_into(blob, at - ROWS_HEADER.size, layer.k.type, row)
        k.append(np.frombuffer(blob, np.uint8, span.n_cells * row, at).reshape(span.n_cells, row))
    for layer, start in zip(cache.layers, span.v, strict=True):
        if layer.v is None or start is None:
            v.append(None)
            continue
        row = tensor_row_bytes(layer.v)
        if cache.v_trans:
            size = block_type(layer.v.type).type_size
            TRANSPOSED_HEADER.pack_into(blob, start - TRANSPOSED_HEADER.size, layer.v.type, size, layer.v.n_embd)
            v.append(transposed_view(blob, start, size, layer.v.n_embd, span.n_cells))
        else:
            ROWS_HEADER.pack_into(blob, start - ROWS_HEADER.size, layer.v.type, row)
            v.append(np.frombuffer(blob, np.uint8, span.n_cells * row, start).reshape(span.n_cells, row))
    return CacheTarget(tuple(k), tuple(v))


def transposed_view(
    blob: bytes | bytearray | memoryview, start: int, element_bytes: int, n_embd: int, n_cells: int
) -> NDArray[np.unsignedinteger]:
    """Element-major data as a strided view (n_cells, n_embd) of unsigned integers as wide as an element."""
    flat = np.frombuffer(blob, np.dtype(f"<u{element_bytes}"), n_cells * n_embd, start)
    return flat.reshape(n_embd, n_cells).T
