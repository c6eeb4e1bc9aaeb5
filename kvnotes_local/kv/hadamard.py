"""Walsh-Hadamard transform of key and value rows, which llama.cpp applies before it quantizes them.

Mirrors src/llama-kv-cache.cpp (``ggml_gen_hadamard``, ``build_input_k_rot``, ``build_input_v_rot``).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.errors import LayoutError

_SMALLEST = 64


def check_block(block: int, n_embd: int) -> None:
    """Raise LayoutError unless ``block`` is a power of two that divides ``n_embd`` (0 stands for no transform)."""
    if block < 0 or block & (block - 1) or (block and n_embd % block):
        raise LayoutError(f"a Hadamard block of {block} elements does not fit rows of {n_embd} elements")


@cache
def _sylvester(n: int, block: int) -> NDArray[np.float32]:
    """Sylvester's matrix of size n, divided by sqrt(block)."""
    matrix = np.full((1, 1), np.float32(1) / np.sqrt(np.float32(block)), np.float32)
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def hadamard_in_buffers(
    rows: NDArray[np.float32], block: int, spare: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Transform contiguous float32 (m, n) without allocating; ``spare`` is a second array of that shape.

    Returns the one of both that holds the result, and the other one, whose content is arbitrary. Raises LayoutError
    when ``block`` is no power of two that divides n.
    """
    check_block(block, rows.shape[-1])
    if block <= 1:
        return rows, spare
    # H(2n) = [[H(n), H(n)], [H(n), -H(n)]]: additions while they run over long stretches, then one product with a small
    # matrix, which BLAS does several times faster than numpy can add short stretches.
    half = block // 2
    while half >= _SMALLEST:
        pairs = rows.reshape(-1, 2, half)
        mixed = spare.reshape(-1, 2, half)
        np.add(pairs[:, 0], pairs[:, 1], out=mixed[:, 0])
        np.subtract(pairs[:, 0], pairs[:, 1], out=mixed[:, 1])
        rows, spare = spare, rows
        half //= 2
    size = min(block, _SMALLEST)
    np.matmul(rows.reshape(-1, size), _sylvester(size, block), out=spare.reshape(-1, size))
    return spare, rows


def hadamard(rows: NDArray[np.float32], block: int) -> NDArray[np.float32]:
    """Transform consecutive blocks of float32 (..., n); its own inverse up to rounding. Block 0 or 1 copies.

    The matrix is Sylvester's, divided by sqrt(block). Raises LayoutError when ``block`` is no power of two dividing n.
    """
    source = np.array(rows, dtype=np.float32).reshape(-1, rows.shape[-1])
    result, _ = hadamard_in_buffers(source, block, np.empty_like(source))
    return result.reshape(rows.shape)
