"""What the KV cache of one model in one context looks like, and rows taken out of such a cache.

Mirrors llama.cpp's src/llama-kv-cache.cpp (``state_write_meta``, ``state_write_data``) and src/llama-kv-cache-iswa.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class GGMLType(IntEnum):
    """Tensor types that a KV cache can have; the values are those of ``enum ggml_type`` in ggml/include/ggml.h."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    IQ4_NL = 20
    BF16 = 30


@dataclass(frozen=True)
class TensorLayout:
    """One layer's keys or values: each cell is a row of ``n_embd`` elements of type ``type``."""

    type: GGMLType
    n_embd: int


@dataclass(frozen=True)
class LayerLayout:
    """Keys and values of one layer; ``v`` is None where the model caches no values (MLA)."""

    k: TensorLayout
    v: TensorLayout | None


@dataclass(frozen=True)
class CacheLayout:
    """One cache of a model: sliding-window models have two, full attention first.

    ``v_trans``: values are stored element-major (flash attention off).
    ``has_ext``: each cell carries 12 more bytes, i32 x, y, token (M-RoPE and n-gram models).
    ``k_hadamard`` / ``v_hadamard``: block length of the Walsh-Hadamard matrix that rows are multiplied by, 0 for none.
    The blob does not record it: it is detected from the live context.
    """

    layers: tuple[LayerLayout, ...]
    v_trans: bool = False
    has_ext: bool = False
    n_stream: int = 1
    k_hadamard: int = 0
    v_hadamard: int = 0


@dataclass(frozen=True)
class StateLayout:
    """All caches of one model in one context, in the order in which llama.cpp writes them."""

    caches: tuple[CacheLayout, ...]

    def with_types(self, type_of: Callable[[TensorLayout], GGMLType]) -> StateLayout:
        """The same rows in other types."""

        def tensor(one: TensorLayout) -> TensorLayout:
            return TensorLayout(type_of(one), one.n_embd)

        def cache(one: CacheLayout) -> CacheLayout:
            layers = (LayerLayout(tensor(y.k), None if y.v is None else tensor(y.v)) for y in one.layers)
            return replace(one, layers=tuple(layers))

        return StateLayout(tuple(map(cache, self.caches)))

    def without_hadamard(self) -> StateLayout:
        """The same rows, multiplied by no matrix."""
        return StateLayout(tuple(replace(one, k_hadamard=0, v_hadamard=0) for one in self.caches))

    def plain(self) -> StateLayout:
        """The same rows one after the other, multiplied by no matrix."""
        return StateLayout(tuple(replace(one, v_trans=False) for one in self.without_hadamard().caches))


@dataclass(frozen=True)
class CacheRows:
    """Rows of one cache for ``n`` cells, always cell-major whatever ``v_trans`` says.

    ``pos``: int32 (n,), ascending. ``ext``: int32 (n, 3) or None.
    ``k[layer]``, ``v[layer]``: uint8 (n, row_bytes), or None for a layer without values. They may be views.
    ``stream``: which of ``n_stream`` streams the cells lie in.
    """

    pos: NDArray[np.int32]
    k: tuple[NDArray[np.uint8], ...]
    v: tuple[NDArray[np.uint8] | None, ...]
    ext: NDArray[np.int32] | None = None
    stream: int = 0


@dataclass(frozen=True)
class StateRows:
    """One sequence's rows: ``caches`` runs parallel to ``layout.caches``."""

    layout: StateLayout
    caches: tuple[CacheRows, ...]
