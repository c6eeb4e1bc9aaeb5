"""Floating-point tensor types: every element is a block of its own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.kv.block_base import BlockType, half_bits_finite
from kvnotes_local.kv.layout import GGMLType


class F32(BlockType):
    type = GGMLType.F32
    block_size = 1
    type_size = 4

    def _encode(self, blocks: NDArray[np.float32]) -> NDArray[np.uint8]:
        return blocks.copy().view(np.uint8)

    def _decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return blocks.copy().view(np.float32)

    def _finite(self, blocks: NDArray[np.uint8]) -> bool:
        return bool(np.isfinite(blocks.view(np.float32)).all())


class F16(BlockType):
    """Rounded to nearest even; too large values become infinite (``ggml_compute_fp32_to_fp16``, ggml-impl.h)."""

    type = GGMLType.F16
    block_size = 1
    type_size = 2

    def _encode(self, blocks: NDArray[np.float32]) -> NDArray[np.uint8]:
        return blocks.astype(np.float16).view(np.uint8)

    def _decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return blocks.view(np.float16).astype(np.float32)

    def _finite(self, blocks: NDArray[np.uint8]) -> bool:
        return half_bits_finite(blocks.view(np.uint16))


class BF16(BlockType):
    """The upper half of a float32, rounded to nearest even (``ggml_compute_fp32_to_bf16``, ggml-impl.h)."""

    type = GGMLType.BF16
    block_size = 1
    type_size = 2

    def _encode(self, blocks: NDArray[np.float32]) -> NDArray[np.uint8]:
        bits = blocks.view(np.uint32)
        upper = bits >> 16
        rounded = (bits + (0x7FFF + (upper & 1))) >> 16
        # Rounding a NaN up could carry it into infinity or the sign: keep its payload and make it quiet instead.
        nan = (bits & 0x7FFFFFFF) > 0x7F800000
        return np.where(nan, upper | 64, rounded).astype(np.uint16).view(np.uint8)

    def _decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32)

    def _finite(self, blocks: NDArray[np.uint8]) -> bool:
        return not bool(np.any((blocks.view(np.uint16) & 0x7F80) == 0x7F80))
