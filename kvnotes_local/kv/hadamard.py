"""Walsh-Hadamard transform of key and value rows, which llama.cpp applies before it quantizes them.

Mirrors src/llama-kv-cache.cpp (``ggml_gen_hadamard``, ``build_input_k_rot``, ``build_input_v_rot``) and
``ggml_compute_forward_fwht`` of ggml/src/ggml-cpu/ops.cpp, down to the order of the additions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.errors import LayoutError
from kvnotes_local.kv.layout import GGMLType

_SMALLEST = 64
_PLAIN_TYPES = frozenset({GGMLType.F32, GGMLType.F16, GGMLType.BF16})


def check_block(block: int, n_embd: int) -> None:
    """Raise LayoutError unless ``block`` is a power of two that divides ``n_embd`` (0 stands for no transform)."""
    if block < 0 or block & (block - 1) or (block and n_embd % block):
        raise LayoutError(f"a Hadamard block of {block} elements does not fit rows of {n_embd} elements")


def hadamard(rows: NDArray[np.float32], block: int) -> NDArray[np.float32]:
    """Transform consecutive blocks of float32 (..., n); its own inverse up to rounding. Block 0 or 1 copies.

    The matrix is Sylvester's, divided by sqrt(block). Raises LayoutError when ``block`` is no power of two dividing n.
    """
    check_block(block, rows.shape[-1])
    if block <= 1:
        return np.array(rows, dtype=np.float32)
    scale = np.float32(1) / np.sqrt(np.float32(block))
    # With the blocks along the last axis all additions run over long contiguous stretches.
    now = np.ascontiguousarray(rows.reshape(-1, block).T, dtype=np.float32)
    now *= scale
    spare = np.empty_like(now)
    half = 1
    while half < block:
        pairs = now.reshape(block // (2 * half), 2, -1)
        sums = spare.reshape(pairs.shape)
        np.add(pairs[:, 0], pairs[:, 1], out=sums[:, 0])
        np.subtract(pairs[:, 0], pairs[:, 1], out=sums[:, 1])
        now, spare = spare, now
        half *= 2
    return np.ascontiguousarray(now.T).reshape(rows.shape)


def expected_hadamard(head_size: int, type: GGMLType, *, values: bool = False, disabled: bool = False) -> int:
    """The block that llama.cpp picks for heads of ``head_size`` elements cached as ``type``; 0 for none.

    Keys: the largest power of two that divides the head; values: 64. Only quantized types are transformed, and only
    when the head is a multiple of 64. ``disabled``: LLAMA_ATTN_ROT_DISABLE is set. Pass ``head_size`` 0 for models
    whose layers differ in head size, since llama.cpp then does without.
    """
    if disabled or type in _PLAIN_TYPES or head_size <= 0 or head_size % _SMALLEST:
        return 0
    return _SMALLEST if values else head_size & -head_size
