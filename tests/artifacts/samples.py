"""Artifacts for tests: layouts of every kind, random rows in them, and what an artifact says of itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvnotes_local.artifacts.artifact import ArtifactMeta, StoreType
from kvnotes_local.chat_format.turns import FieldSpan
from kvnotes_local.kv.block_types import tensor_row_bytes
from kvnotes_local.kv.layout import (
    CacheLayout,
    CacheRows,
    GGMLType,
    LayerLayout,
    StateLayout,
    StateRows,
    TensorLayout,
)


def layer(k: GGMLType = GGMLType.F16, v: GGMLType | None = GGMLType.F16, n_embd: int = 64) -> LayerLayout:
    return LayerLayout(TensorLayout(k, n_embd), None if v is None else TensorLayout(v, n_embd))


F16, Q8 = GGMLType.F16, GGMLType.Q8_0

# Each with the number of cells that each of its caches holds of a skill of 12 tokens.
LAYOUTS: dict[str, tuple[StateLayout, tuple[int, ...]]] = {
    "plain": (StateLayout((CacheLayout((layer(),) * 3),)), (12,)),
    "q8_0": (StateLayout((CacheLayout((layer(Q8, Q8),) * 2, k_hadamard=64, v_hadamard=64),)), (12,)),
    "q8_0 keys, f16 values": (StateLayout((CacheLayout((layer(Q8, F16),)),)), (12,)),
    "sliding window": (StateLayout((CacheLayout((layer(),)), CacheLayout((layer(n_embd=32),) * 2))), (12, 5)),
    "all layers slide": (StateLayout((CacheLayout(()), CacheLayout((layer(),)))), (12, 7)),
    "window holds nothing": (StateLayout((CacheLayout((layer(),)), CacheLayout((layer(),)))), (12, 0)),
    "no values": (StateLayout((CacheLayout((layer(v=None, n_embd=576),) * 2),)), (12,)),
    "m-rope": (StateLayout((CacheLayout((layer(),), has_ext=True),)), (12,)),
    "transposed values, streams": (StateLayout((CacheLayout((layer(),), v_trans=True, n_stream=4),)), (12,)),
}


def random_rows(layout: StateLayout, counts: tuple[int, ...], start: int = 20, seed: int = 0) -> StateRows:
    """Random bytes; each cache holds the last ``count`` cells of the skill's 12 tokens."""
    rng = np.random.default_rng(seed)
    caches = []
    for cache, n in zip(layout.caches, counts, strict=True):

        def rows(tensor: TensorLayout, n: int = n) -> np.ndarray:
            return rng.integers(0, 256, (n, tensor_row_bytes(tensor)), dtype=np.uint8)

        caches.append(
            CacheRows(
                pos=np.arange(start + 12 - n, start + 12, dtype=np.int32),
                ext=rng.integers(0, 99, (n, 3)).astype(np.int32) if cache.has_ext else None,
                k=tuple(rows(one.k) for one in cache.layers),
                v=tuple(None if one.v is None else rows(one.v) for one in cache.layers),
            )
        )
    return StateRows(layout, tuple(caches))


META = ArtifactMeta(
    skill="refund-policy",
    skill_sha256="5" * 64,
    model_fingerprint="ab" * 32,
    model_name="SmolLM2 135M",
    model_arch="llama",
    tokens=tuple(range(100, 112)),
    position_start=20,
    lead="notice",
    wrapper="<|im_start|>user\n…<|im_end|>\n",
    rotation_fingerprint="r1",
    store=StoreType.F16,
    llama_cpp_version="0.3.36",
    created="2026-01-31T12:00:00+00:00",
    fields=(FieldSpan("refund window", "30 days", 3, 5), FieldSpan("limit", "", 7, 7)),
)


def meta_for(layout: StateLayout) -> ArtifactMeta:
    """META with the store type that the layout's keys have."""
    quantized = any(one.k.type is Q8 for cache in layout.caches for one in cache.layers)
    return replace(META, store=StoreType.Q8_0 if quantized else StoreType.F16)


def same_rows(left: StateRows, right: StateRows) -> bool:
    """Whether two sets of rows are equal in layout, positions and every byte."""

    def equal(a: np.ndarray | None, b: np.ndarray | None) -> bool:
        return (a is None) == (b is None) and (a is None or b is None or np.array_equal(a, b))

    return left.layout == right.layout and all(
        equal(a.pos, b.pos)
        and equal(a.ext, b.ext)
        and all(map(equal, a.k, b.k))
        and all(map(equal, a.v, b.v))
        and len(a.k) == len(b.k)
        and len(a.v) == len(b.v)
        for a, b in zip(left.caches, right.caches, strict=True)
    )
