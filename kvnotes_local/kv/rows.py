"""Cutting, joining and averaging rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.errors import LayoutError
from kvnotes_local.kv.block_types import tensor_row_bytes
from kvnotes_local.kv.converter import NUMPY, RowConverter
from kvnotes_local.kv.hadamard import hadamard_in_buffers
from kvnotes_local.kv.layout import CacheRows, GGMLType, StateRows, TensorLayout
from kvnotes_local.kv.state import check_rows, take_cells

_CHUNK_ELEMENTS = 1 << 16
SINK_RATIO = 4.0
"""Values that many times as long in one reading as in another make a token a sink in only one of them."""


def slice_rows(rows: StateRows, start: int, stop: int) -> StateRows:
    """Cells ``start … stop - 1`` of every cache by index, as views; only for caches that hold the same cells.

    Raises LayoutError when the caches hold different positions; use :func:`slice_positions` for those.
    """
    first = rows.caches[0].pos
    if any(not np.array_equal(first, cache.pos) for cache in rows.caches[1:]):
        raise LayoutError("the caches hold different cells, so an index means nothing; slice by positions instead")
    return replace(rows, caches=tuple(take_cells(cache, slice(start, stop)) for cache in rows.caches))


def slice_positions(rows: StateRows, p0: int, p1: int) -> StateRows:
    """Cells with positions ``p0 … p1 - 1`` of every cache, as views. A sliding cache may hold fewer of them."""

    def cut(cache: CacheRows) -> CacheRows:
        first, last = np.searchsorted(cache.pos, (p0, p1))
        return take_cells(cache, slice(int(first), int(max(first, last))))

    return replace(rows, caches=tuple(cut(cache) for cache in rows.caches))


def mix_layers(rows: StateRows, other: StateRows, depth: tuple[float, float]) -> StateRows:
    """``rows`` with the layers in the share ``depth`` (0 first … 1 behind the last, by place in its cache) from ``other``.

    Raises LayoutError unless both have equal layouts and positions.
    """
    if rows.layout != other.layout or any(
        not np.array_equal(a.pos, b.pos) for a, b in zip(rows.caches, other.caches, strict=True)
    ):
        raise LayoutError("only rows of equal layout and positions can be mixed; reposition them first")

    def mixed(cache: CacheRows, others: CacheRows) -> CacheRows:
        n = len(cache.k)
        taken = [depth[0] <= i / n < depth[1] for i in range(n)]
        return replace(
            cache,
            k=tuple(b if take else a for a, b, take in zip(cache.k, others.k, taken, strict=True)),
            v=tuple(b if take else a for a, b, take in zip(cache.v, others.v, taken, strict=True)),
        )

    return replace(rows, caches=tuple(mixed(a, b) for a, b in zip(rows.caches, other.caches, strict=True)))


def concat(parts: Sequence[StateRows]) -> StateRows:
    """One after the other, as a copy. Raises LayoutError unless layouts agree and positions ascend throughout."""
    if not parts:
        raise LayoutError("nothing to join")
    layout = parts[0].layout
    if any(part.layout != layout for part in parts):
        raise LayoutError("rows of different layouts cannot be joined; convert them with reposition first")
    for part in parts:
        check_rows(part)
    joined = StateRows(layout, tuple(_concat_cache([p.caches[i] for p in parts]) for i in range(len(layout.caches))))
    check_rows(joined)
    return joined


def _concat_cache(parts: list[CacheRows]) -> CacheRows:
    filled = [part for part in parts if len(part.pos)] or parts[:1]
    first = filled[0]
    if any(part.stream != first.stream for part in filled):
        raise LayoutError("rows of different streams cannot be joined")
    exts = [part.ext for part in filled if part.ext is not None]
    return CacheRows(
        np.concatenate([part.pos for part in filled]),
        tuple(np.concatenate([part.k[i] for part in filled]) for i in range(len(first.k))),
        tuple(
            None if first.v[i] is None else np.concatenate([v for part in filled if (v := part.v[i]) is not None])
            for i in range(len(first.v))
        ),
        np.concatenate(exts) if exts else None,
        first.stream,
    )


def average_rows(parts: Sequence[StateRows], converter: RowConverter = NUMPY) -> StateRows:
    """Mean of keys and of values, taken in float32, as F16 rows without Hadamard.

    Cells that are an attention sink in one part and none in another (see ``sink_positions``) come from the first part whole:
    half a sink is neither. All parts must have equal layouts and positions: reposition them first. Raises LayoutError
    otherwise.
    """
    if not parts:
        raise LayoutError("nothing to average")
    first = parts[0]
    for part in parts:
        check_rows(part)
        if part.layout != first.layout or any(
            not np.array_equal(a.pos, b.pos) for a, b in zip(part.caches, first.caches, strict=True)
        ):
            raise LayoutError("only rows of equal layout and positions can be averaged; reposition them first")
    sinks = sink_positions(parts, converter)
    caches = []
    for at, cache in enumerate(first.layout.caches):
        members = [part.caches[at] for part in parts]
        whole = np.isin(members[0].pos, sinks)
        k = tuple(
            _average([m.k[i] for m in members], layer.k, cache.k_hadamard, converter, whole)
            for i, layer in enumerate(cache.layers)
        )
        v = tuple(
            None
            if layer.v is None
            else _average(
                [y for m in members if (y := m.v[i]) is not None], layer.v, cache.v_hadamard, converter, whole
            )
            for i, layer in enumerate(cache.layers)
        )
        caches.append(replace(members[0], k=k, v=v))
    return StateRows(first.layout.without_hadamard().with_types(lambda tensor: GGMLType.F16), tuple(caches))


def sink_positions(parts: Sequence[StateRows], converter: RowConverter = NUMPY) -> NDArray[np.int32]:
    """Positions whose values are far longer in one part than in another, in any layer: int32, ascending.

    Models park attention on some tokens, whose values they make nearly nothing. Which full stop or blank it is can depend on
    what stands before (seen with Gemma 3, where two tokens of 473 differ tenfold).
    """
    found: set[int] = set()
    for at, cache in enumerate(parts[0].layout.caches):
        for i, layer in enumerate(cache.layers):
            if layer.v is None:
                continue
            lengths = [_lengths(y, layer.v, converter) for part in parts if (y := part.caches[at].v[i]) is not None]
            most, least = np.max(lengths, axis=0), np.min(lengths, axis=0)
            found.update(parts[0].caches[at].pos[most > SINK_RATIO * least].tolist())
    return np.array(sorted(found), np.int32)


def _lengths(rows: NDArray[np.uint8], tensor: TensorLayout, converter: RowConverter) -> NDArray[np.float32]:
    """Euclidean length of each row."""
    lengths = np.empty(len(rows), np.float32)
    step = max(1, _CHUNK_ELEMENTS // max(1, tensor.n_embd))
    for start in range(0, len(rows), step):
        chunk = np.ascontiguousarray(rows[start : start + step])
        values = np.empty((len(chunk), tensor.n_embd), np.float32)
        converter.dequantize(tensor.type, chunk, values)
        lengths[start : start + step] = np.sqrt(np.einsum("ij,ij->i", values, values))
    return lengths


def _average(
    members: list[NDArray[np.uint8]],
    tensor: TensorLayout,
    block: int,
    converter: RowConverter,
    whole: NDArray[np.bool_],
) -> NDArray[np.uint8]:
    """``whole``: bool (n,), rows to be taken from the first member as they are."""
    n, n_embd = len(members[0]), tensor.n_embd
    out = np.empty((n, tensor_row_bytes(TensorLayout(GGMLType.F16, n_embd))), np.uint8)
    step = max(1, _CHUNK_ELEMENTS // max(1, n_embd))
    for start in range(0, n, step):
        m = min(step, n - start)
        total = np.zeros((m, n_embd), np.float32)
        part = np.empty_like(total)
        for member in members:
            converter.dequantize(tensor.type, np.ascontiguousarray(member[start : start + m]), part)
            total += part
        total *= np.float32(1 / len(members))
        if whole[start : start + m].any():
            converter.dequantize(tensor.type, np.ascontiguousarray(members[0][start : start + m]), part)
            total[whole[start : start + m]] = part[whole[start : start + m]]
        total, part = hadamard_in_buffers(total, block, part)
        converter.quantize(GGMLType.F16, total, out[start : start + m])
    return out
