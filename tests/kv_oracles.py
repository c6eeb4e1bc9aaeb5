"""What llama.cpp does to rows, in its plainest form, for tests to compare with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.kv.rotation import LayerRotation
from kvnotes_local.kv.turning import TurningTable


def rotate(keys: NDArray[np.float32], rotation: LayerRotation, angles: NDArray[np.float64]) -> NDArray[np.float32]:
    """A copy of float32 keys (n_cells, n_head * head_dim), turned by angles (n_cells, n_rot/2) or (1, n_rot/2)."""
    out = np.array(keys, dtype=np.float32, order="C")
    TurningTable(rotation, angles, len(keys)).turn(out, np.zeros_like(out))
    return out


def expected_hadamard(head_size: int, type: GGMLType, *, values: bool = False, disabled: bool = False) -> int:
    """The block that llama.cpp picks for heads of ``head_size`` elements cached as ``type``; 0 for none.

    Keys: the largest power of two that divides the head; values: 64. Only quantized types are transformed, and only
    when the head is a multiple of 64. ``disabled``: LLAMA_ATTN_ROT_DISABLE is set. Pass ``head_size`` 0 for models
    whose layers differ in head size, since llama.cpp then does without.
    """
    plain = type in (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
    if disabled or plain or head_size <= 0 or head_size % 64:
        return 0
    return 64 if values else head_size & -head_size
