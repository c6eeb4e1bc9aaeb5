"""Layouts, random rows, and a second, naive writer of state blobs that follows llama.cpp's C++ line by line."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np

from kvnotes_local.kv.block_types import block_type, tensor_row_bytes
from kvnotes_local.kv.layout import (
    CacheLayout,
    CacheRows,
    GGMLType,
    LayerLayout,
    StateLayout,
    StateRows,
    TensorLayout,
)
from kvnotes_local.kv.rotation import LayerRotation, ModelRotation, Pairing


def tensor(type: GGMLType, n_embd: int = 64) -> TensorLayout:
    return TensorLayout(type, n_embd)


def cache(n_layer: int, k: GGMLType, v: GGMLType | None, n_embd: int = 64, **more: object) -> CacheLayout:
    layer = LayerLayout(tensor(k, n_embd), None if v is None else tensor(v, n_embd))
    return replace(CacheLayout((layer,) * n_layer), **more)  # type: ignore[arg-type]


F16, Q8 = GGMLType.F16, GGMLType.Q8_0

LAYOUTS: dict[str, StateLayout] = {
    "plain F16": StateLayout((cache(3, F16, F16),)),
    "Q8_0": StateLayout((cache(2, Q8, Q8),)),
    "mixed types": StateLayout((cache(2, GGMLType.Q5_1, GGMLType.IQ4_NL),)),
    "flash attention off": StateLayout((cache(2, F16, F16, v_trans=True),)),
    "flash attention off, F32": StateLayout((cache(2, GGMLType.F32, GGMLType.F32, v_trans=True),)),
    "sliding window": StateLayout((cache(1, F16, F16), cache(3, F16, F16))),
    "sliding window, all layers slide": StateLayout((cache(0, F16, F16), cache(2, Q8, F16))),
    "no values": StateLayout((cache(3, F16, None, 96),)),
    "no values, two caches": StateLayout((cache(2, F16, None, 96), cache(2, Q8, None, 32))),
    "M-RoPE": StateLayout((cache(2, F16, F16, has_ext=True),)),
    "M-RoPE, sliding window": StateLayout((cache(1, F16, Q8, has_ext=True), cache(1, F16, Q8, has_ext=True))),
    "four streams": StateLayout((cache(2, F16, F16, n_stream=4),)),
    "three caches": StateLayout((cache(1, F16, F16), cache(1, F16, None), cache(2, GGMLType.BF16, F16, v_trans=True))),
}


def random_rows(layout: StateLayout, n_cells: tuple[int, ...], seed: int = 0, *, start: int = 3) -> StateRows:
    """Normal numbers, quantized, at strictly ascending positions with gaps."""
    rng = np.random.default_rng(seed)
    caches = []
    for described, n in zip(layout.caches, n_cells, strict=True):
        pos = (start + np.cumsum(rng.integers(1, 3, n))).astype(np.int32)
        ext = np.stack((pos, pos, rng.integers(0, 1000, n)), axis=1).astype(np.int32) if described.has_ext else None

        def values(t: TensorLayout, n: int = n) -> np.ndarray:
            return block_type(t.type).quantize(rng.standard_normal((n, t.n_embd)).astype(np.float32))

        k = tuple(values(layer.k) for layer in described.layers)
        v = tuple(None if layer.v is None else values(layer.v) for layer in described.layers)
        stream = int(rng.integers(described.n_stream)) if n else 0
        caches.append(CacheRows(pos, k, v, ext, stream))
    return StateRows(layout, tuple(caches))


def naive_blob(rows: StateRows, seq_id: int = 0) -> bytes:
    """``llama_kv_cache::state_write`` in its own order of writes."""
    out = bytearray(struct.pack("<Ii", 0xAF143CD8, seq_id))
    for described, data in zip(rows.layout.caches, rows.caches, strict=True):
        out += struct.pack("<I", described.n_stream)
        for stream in range(described.n_stream):
            n = len(data.pos) if stream == data.stream else 0
            out += struct.pack("<I", n)
            if not n:
                continue
            for i in range(n):
                out += struct.pack("<iI", data.pos[i], 1)
                if data.ext is not None:
                    out += struct.pack("<iii", *data.ext[i])
                out += struct.pack("<i", seq_id)
            out += struct.pack("<II", described.v_trans, len(described.layers))
            for layer, k in zip(described.layers, data.k, strict=True):
                out += struct.pack("<iQ", layer.k.type, tensor_row_bytes(layer.k)) + k.tobytes()
            for layer, v in zip(described.layers, data.v, strict=True):
                if layer.v is None or v is None:
                    continue
                if not described.v_trans:
                    out += struct.pack("<iQ", layer.v.type, tensor_row_bytes(layer.v)) + v.tobytes()
                    continue
                size = block_type(layer.v.type).type_size
                out += struct.pack("<iII", layer.v.type, size, layer.v.n_embd)
                for j in range(layer.v.n_embd):
                    for i in range(n):
                        out += v[i, j * size : (j + 1) * size].tobytes()
    return bytes(out)


def rotation_for(
    layout: StateLayout, head_dim: int = 32, n_rot: int | None = None, pairing: Pairing = Pairing.HALVES
) -> ModelRotation:
    """The same rotation for all layers, with the usual base of 10,000."""
    n_rot = head_dim if n_rot is None else n_rot
    frequencies = 10000.0 ** -(np.arange(n_rot // 2) * 2 / max(n_rot, 1))
    return ModelRotation(
        tuple(
            tuple(
                LayerRotation(layer.k.n_embd // head_dim, head_dim, head_dim - n_rot, n_rot, pairing, frequencies)
                for layer in described.layers
            )
            for described in layout.caches
        )
    )


def decoded(rows: StateRows) -> list[np.ndarray]:
    """All keys, then all values, cache by cache, as float32."""
    out = []
    for described, data in zip(rows.layout.caches, rows.caches, strict=True):
        out += [block_type(layer.k.type).dequantize(k) for layer, k in zip(described.layers, data.k, strict=True)]
        out += [
            block_type(layer.v.type).dequantize(v)
            for layer, v in zip(described.layers, data.v, strict=True)
            if layer.v is not None and v is not None
        ]
    return out


def assert_same_rows(a: StateRows, b: StateRows) -> None:
    assert a.layout == b.layout
    for x, y in zip(a.caches, b.caches, strict=True):
        np.testing.assert_array_equal(x.pos, y.pos)
        assert x.stream == y.stream
        assert (x.ext is None) == (y.ext is None)
        if x.ext is not None and y.ext is not None:
            np.testing.assert_array_equal(x.ext, y.ext)
        for p, q in zip((*x.k, *x.v), (*y.k, *y.v), strict=True):
            assert (p is None) == (q is None)
            if p is not None and q is not None:
                np.testing.assert_array_equal(p, q)
