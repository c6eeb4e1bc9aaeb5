"""How a model rotates its keys with the position (RoPE), as measured from the model.

Mirrors ggml/src/ggml-cpu/ops.cpp (``ggml_rope_cache_init``, ``rotate_pairs``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Pairing(StrEnum):
    """Which two elements of a head turn together: (2i, 2i+1) or (i, i + n_rot/2)."""

    ADJACENT = "adjacent"
    HALVES = "halves"


@dataclass(frozen=True, eq=False)
class LayerRotation:
    """Rotation of one layer's key row, which is ``n_head`` heads of ``head_dim`` elements.

    Elements ``offset … offset + n_rot`` of every head turn; the rest stays. ``n_rot`` is 0 for a layer without rotation.
    ``frequencies``: float64 (n_rot/2,), radians per position, one a pair.
    """

    n_head: int
    head_dim: int
    offset: int
    n_rot: int
    pairing: Pairing
    frequencies: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ModelRotation:
    """Rotations of all layers: ``caches[i][j]`` belongs to layer j of cache i of the StateLayout."""

    caches: tuple[tuple[LayerRotation, ...], ...]
