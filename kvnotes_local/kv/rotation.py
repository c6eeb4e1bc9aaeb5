"""How a model rotates its keys with the position (RoPE), as measured from the model.

Mirrors ggml/src/ggml-cpu/ops.cpp (``ggml_rope_cache_init``, ``rotate_pairs``).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.errors import RotationError
from kvnotes_local.kv.angles import AngleArithmetic, float32_angles
from kvnotes_local.kv.layout import StateLayout


class Pairing(StrEnum):
    """Which two elements of a head turn together: (2i, 2i+1) or (i, i + n_rot/2)."""

    ADJACENT = "adjacent"
    HALVES = "halves"


@dataclass(frozen=True, eq=False)
class LayerRotation:
    """Rotation of one layer's key row, which is ``n_head`` heads of ``head_dim`` elements.

    Elements ``offset … offset + n_rot`` of every head turn; the rest stays. ``n_rot`` is 0 for a layer that
    does not rotate.
    ``frequencies``: float64 (n_rot/2,), radians per position, one a pair.
    ``arithmetic``: how ggml rounds the angles; None for the ideal ``frequency * position``.
    Raises RotationError when the numbers contradict each other.
    """

    n_head: int
    head_dim: int
    offset: int
    n_rot: int
    pairing: Pairing
    frequencies: NDArray[np.float64]
    arithmetic: AngleArithmetic | None = None

    def __post_init__(self) -> None:
        if self.n_head < 0 or self.head_dim < 0 or self.offset < 0 or self.n_rot < 0:
            raise RotationError("a rotation has a negative size")
        if self.n_rot % 2 or self.offset + self.n_rot > self.head_dim:
            raise RotationError(
                f"{self.n_rot} rotating elements from {self.offset} on do not fit heads of {self.head_dim} elements"
            )
        if self.n_rot and self.pairing is Pairing.ADJACENT and (self.offset % 2 or self.head_dim % 2):
            raise RotationError("adjacent pairs need an even offset and an even head size")
        if self.frequencies.shape != (self.n_rot // 2,) or not np.isfinite(self.frequencies).all():
            raise RotationError(f"{self.n_rot} rotating elements need {self.n_rot // 2} finite frequencies")
        if self.arithmetic is not None:
            self.arithmetic.check(self.n_rot // 2)

    @property
    def key(self) -> Hashable:
        """Equal for layers that rotate alike."""
        sizes = self.n_head, self.head_dim, self.offset, self.n_rot, self.pairing
        arithmetic = None if self.arithmetic is None else self.arithmetic.key
        return sizes, tuple(self.frequencies.tolist()), arithmetic

    @property
    def n_embd(self) -> int:
        """Elements of a key row."""
        return self.n_head * self.head_dim


@dataclass(frozen=True, eq=False)
class ModelRotation:
    """Rotations of all layers: ``caches[i][j]`` belongs to layer j of cache i of the StateLayout."""

    caches: tuple[tuple[LayerRotation, ...], ...]


def angles(rotation: LayerRotation, positions: NDArray[np.integer]) -> NDArray[np.float64]:
    """Angle of every pair at every position: float64 (n, n_rot/2), in radians, for integer positions (n,).

    With an ``arithmetic`` these are exactly the float32 angles of ggml's CPU backend.
    """
    if rotation.arithmetic is None:
        return np.multiply.outer(positions.astype(np.float64), rotation.frequencies)
    return float32_angles(rotation.arithmetic, positions, rotation.n_rot // 2).astype(np.float64)


def check_rotation(rotation: ModelRotation, layout: StateLayout) -> None:
    """Raise RotationError unless there is one rotation for every layer's key rows."""
    found = [[layer.n_embd for layer in cache] for cache in rotation.caches]
    wanted = [[layer.k.n_embd for layer in cache.layers] for cache in layout.caches]
    if found != wanted:
        raise RotationError(
            f"the rotation was measured for key rows of {found} elements (cache by cache, layer by layer), "
            f"the layout has {wanted}; measure the model again"
        )
