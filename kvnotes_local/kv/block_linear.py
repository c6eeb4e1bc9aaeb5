"""Quantized types whose values are ``scale * integer`` or ``scale * integer + minimum``, in blocks of 32.

Mirrors ggml/src/ggml-quants.c (``quantize_row_q8_0_ref`` and its siblings). Every operation happens in float32 and in
the same order there and here, which is what makes the bytes equal.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.kv.block_base import BlockType, as_half_bytes, half_bits_finite, half_column
from kvnotes_local.kv.layout import GGMLType

_FOUR = np.uint8(4)
_LOW = np.uint8(15)
_HALF = 16
"""Elements j and j + 16 of a block share a byte: the first in the low four bits."""


def _reciprocal(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(scale != 0, np.float32(1) / scale, np.float32(0))


def _to_integers(values: NDArray[np.float32]) -> NDArray[np.int32]:
    """Cut off the fraction; what is not finite (it comes with an infinite, NaN or vanishing scale) becomes 0."""
    return np.where(np.isfinite(values), values, np.float32(0)).astype(np.int32)


def _signed_maximum(blocks: NDArray[np.float32]) -> NDArray[np.float32]:
    """The element of the largest magnitude of each block (the first of equals), as (n_blocks, 1)."""
    magnitude = np.abs(blocks)
    at = np.argmax(magnitude, axis=1)[:, None]
    return np.take_along_axis(blocks, at, axis=1)


def pack_nibbles(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Levels 0 … 15 (n_blocks, 32) as uint8 (n_blocks, 16)."""
    return levels[:, :_HALF] | (levels[:, _HALF:] << _FOUR)


def unpack_nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The inverse of :func:`pack_nibbles`."""
    return np.concatenate((packed & _LOW, packed >> _FOUR), axis=1)


def _pack_fifth_bits(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bit 4 of each of 32 levels as a little-endian u32, so uint8 (n_blocks, 4)."""
    return np.packbits(levels >> _FOUR, axis=1, bitorder="little")


def _unpack_fifth_bits(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.unpackbits(packed, axis=1, bitorder="little") << _FOUR


class _LinearBlock(BlockType):
    block_size = 32
    header_halves: ClassVar[int] = 1
    """How many float16 a block starts with: the scale, and the minimum where there is one."""

    def _finite(self, blocks: NDArray[np.uint8]) -> bool:
        header = np.ascontiguousarray(blocks[:, : 2 * self.header_halves])
        return half_bits_finite(header.view(np.uint16))


class Q8_0(_LinearBlock):  # noqa: N801 - ggml's name
    type = GGMLType.Q8_0
    type_size = 34

    def _encode(self, blocks: NDArray[np.float32]) -> NDArray[np.uint8]:
        scale = np.max(np.abs(blocks), axis=1, keepdims=True) / np.float32(127)
        scaled = blocks * _reciprocal(scale)
        # C's roundf takes halves away from zero. Adding 0.5 first would be wrong just below a half.
        whole = np.trunc(scaled)
        whole += np.copysign((np.abs(scaled - whole) >= 0.5).astype(np.float32), scaled)
        return np.concatenate((as_half_bytes(scale), _to_integers(whole).astype(np.int8).view(np.uint8)), axis=1)

    def _decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.ascontiguousarray(blocks[:, 2:]).view(np.int8) * half_column(blocks, 0)


class _SignedBlock(_LinearBlock):
    """Levels around ``zero``; the scale's sign lets the largest magnitude have the lowest level."""

    zero: ClassVar[int]

    def _levels(self, blocks: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        scale = _signed_maximum(blocks) / np.float32(-self.zero)
        shifted = blocks * _reciprocal(scale) + np.float32(self.zero + 0.5)
        return scale, np.minimum(_to_integers(shifted), 2 * self.zero - 1).astype(np.uint8)


class _OffsetBlock(_LinearBlock):
    """Levels 0 … ``top`` from the block's minimum to its maximum."""

    header_halves = 2
    top: ClassVar[int]

    def _levels(
        self, blocks: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8]]:
        lowest = np.min(blocks, axis=1, keepdims=True)
        scale = (np.max(blocks, axis=1, keepdims=True) - lowest) / np.float32(self.top)
        shifted = (blocks - lowest) * _reciprocal(scale) + np.float32(0.5)
        return scale, lowest, np.minimum(_to_integers(shifted), self.top).astype(np.uint8)


class Q4_0(_SignedBlock):  # noqa: N801
    type = GGMLType.Q4_0
    type_size = 18
    zero = 8

    def _encode(self, blocks: NDArray[np.float32]) -> NDArray[np.uint8]:
        scale, levels = self._levels(blocks)
        return np.concatenate((as_half_bytes(scale), pack_nibbles(levels)), axis=1)

    def _decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return (unpack_nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8)) * half_column(blocks, 0)


class Q4_1(_OffsetBlock):  # noqa: N801
    type = GGMLType.Q4_1
    type_size = 20
    top = 15

    def _encode(self, blocks: NDArray[np.float32]) -> NDArray[np.uint8]:
        scale, lowest, levels = self._levels(blocks)
        return np.concatenate((as_half_bytes(scale), as_half_bytes(lowest), pack_nibbles(levels)), axis=1)

    def _decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return unpack_nibbles(blocks[:, 4:]).astype(np.float32) * half_column(blocks, 0) + half_column(blocks, 2)


class Q5_0(_SignedBlock):  # noqa: N801
    type = GGMLType.Q5_0
    type_size = 22
    zero = 16

    def _encode(self, blocks: NDArray[np.float32]) -> NDArray[np.uint8]:
        scale, levels = self._levels(blocks)
        return np.concatenate((as_half_bytes(scale), _pack_fifth_bits(levels), pack_nibbles(levels & _LOW)), axis=1)

    def _decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        levels = unpack_nibbles(blocks[:, 6:]) | _unpack_fifth_bits(blocks[:, 2:6])
        return (levels.astype(np.float32) - np.float32(16)) * half_column(blocks, 0)


class Q5_1(_OffsetBlock):  # noqa: N801
    type = GGMLType.Q5_1
    type_size = 24
    top = 31

    def _encode(self, blocks: NDArray[np.float32]) -> NDArray[np.uint8]:
        scale, lowest, levels = self._levels(blocks)
        parts = (as_half_bytes(scale), as_half_bytes(lowest), _pack_fifth_bits(levels), pack_nibbles(levels & _LOW))
        return np.concatenate(parts, axis=1)

    def _decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        levels = unpack_nibbles(blocks[:, 8:]) | _unpack_fifth_bits(blocks[:, 4:8])
        return levels.astype(np.float32) * half_column(blocks, 0) + half_column(blocks, 2)
