"""How far two readings of the same tokens are apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.kv.block_types import block_type
from kvnotes_local.kv.layout import StateRows


def value_distances(a: StateRows, b: StateRows) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """How far the values of each token are apart in two readings, as a share of their length in the first one, mean over layers.

    Returns positions int32 (n,), ascending, and distances (n,). Both must have equal layouts and positions.
    """
    positions = np.unique(np.concatenate([cache.pos for cache in a.caches]))
    total, layers = np.zeros(len(positions)), np.zeros(len(positions))
    for cache, mine, theirs in zip(a.layout.caches, a.caches, b.caches, strict=True):
        at = np.searchsorted(positions, mine.pos)
        for layer, x, y in zip(cache.layers, mine.v, theirs.v, strict=True):
            if layer.v is None or x is None or y is None:
                continue
            dequantize = block_type(layer.v.type).dequantize
            first = dequantize(x)
            lengths = np.linalg.norm(first, axis=1)
            total[at] += np.linalg.norm(first - dequantize(y), axis=1) / np.maximum(lengths, 1e-30)
            layers[at] += 1
    return positions, total / np.maximum(layers, 1)
