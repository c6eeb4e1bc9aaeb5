"""The quantized type whose 16 levels are not evenly spaced.

Mirrors ggml/src/ggml-quants.c: ``quantize_row_iq4_nl_ref``, which is also what the CPU backend's ``from_float`` calls
when ``ggml_set_rows`` stores into a cache.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.kv.block_base import BlockType, as_half_bytes, half_bits_finite, half_column
from kvnotes_local.kv.block_linear import pack_nibbles, unpack_nibbles
from kvnotes_local.kv.layout import GGMLType

_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
_VANISHING = np.float32(1e-15)


def _nearest_level(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Index of the level closest to each value, the upper one of equals (``best_index_int8``)."""
    above = np.clip(np.searchsorted(_LEVELS, values, side="right"), 1, len(_LEVELS) - 1)
    below_is_closer = values - _LEVELS[above - 1] < _LEVELS[above] - values
    return np.where(below_is_closer, above - 1, above).astype(np.uint8)


class IQ4_NL(BlockType):  # noqa: N801 - ggml's name
    type = GGMLType.IQ4_NL
    block_size = 32
    type_size = 18

    def _encode(self, blocks: NDArray[np.float32]) -> NDArray[np.uint8]:
        at = np.argmax(np.abs(blocks), axis=1)[:, None]
        extreme = np.take_along_axis(blocks, at, axis=1)
        levels = _nearest_level(blocks * (np.float32(1) / (extreme / _LEVELS[0])))
        chosen = _LEVELS[levels]
        # Least squares, weighted by the squared element. Summed one by one, since ggml adds in this order in float32.
        weighted = blocks * blocks * chosen
        numerators, denominators = weighted * blocks, weighted * chosen
        numerator = np.zeros(len(blocks), np.float32)
        denominator = np.zeros(len(blocks), np.float32)
        for j in range(self.block_size):
            numerator += numerators[:, j]
            denominator += denominators[:, j]
        scale = np.where(denominator > 0, numerator / denominator, np.float32(0))
        scale = np.where(np.isfinite(extreme[:, 0]), scale, extreme[:, 0])
        nothing = np.abs(extreme[:, 0]) < _VANISHING
        scale[nothing] = 0
        # ggml leaves whatever was in memory in the levels of a vanishing block; zeros are as good and repeatable.
        levels[nothing] = 0
        return np.concatenate((as_half_bytes(scale[:, None].astype(np.float32)), pack_nibbles(levels)), axis=1)

    def _decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return half_column(blocks, 0) * _LEVELS[unpack_nibbles(blocks[:, 2:])]

    def _finite(self, blocks: NDArray[np.uint8]) -> bool:
        return half_bits_finite(np.ascontiguousarray(blocks[:, :2]).view(np.uint16))
