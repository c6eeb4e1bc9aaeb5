"""What a ggml tensor type is to the KV code: a codec between float32 elements and rows of bytes.

Each type is one subclass of :class:`BlockType` in block_floats.py, block_linear.py or block_nonlinear.py; defining the
subclass registers it. Look types up with :func:`kvnotes_local.kv.block_types.block_type`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.errors import LayoutError
from kvnotes_local.kv.layout import GGMLType

REGISTRY: dict[GGMLType, BlockType] = {}


class BlockType(ABC):
    """One tensor type. ``block_size`` elements are stored in ``type_size`` bytes (ggml/src/ggml.c, ``type_traits``).

    Subclasses work on blocks: ``_encode`` gets float32 (n_blocks, block_size) and returns uint8 (n_blocks, type_size),
    ``_decode`` the other way round. Both may assume contiguous input.
    """

    type: ClassVar[GGMLType]
    block_size: ClassVar[int]
    type_size: ClassVar[int]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "type" in cls.__dict__:
            REGISTRY[cls.type] = cls()

    @abstractmethod
    def _encode(self, blocks: NDArray[np.float32]) -> NDArray[np.uint8]: ...

    @abstractmethod
    def _decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]: ...

    @abstractmethod
    def _finite(self, blocks: NDArray[np.uint8]) -> bool: ...

    def row_bytes(self, n_embd: int) -> int:
        """Bytes of a row of ``n_embd`` elements.

        Raises LayoutError when a row does not hold a whole number of blocks.
        """
        if n_embd < 0 or n_embd % self.block_size:
            raise LayoutError(
                f"a row of {n_embd} elements cannot be stored as {self.type.name}: that needs a multiple of "
                f"{self.block_size} elements; choose another KV type, such as F16"
            )
        return n_embd // self.block_size * self.type_size

    def n_elements(self, row_bytes: int) -> int:
        """Elements in a row of ``row_bytes`` bytes.

        Raises LayoutError when the bytes are not a whole number of blocks.
        """
        if row_bytes < 0 or row_bytes % self.type_size:
            raise LayoutError(
                f"{row_bytes} bytes are no whole row of {self.type.name}, whose blocks have {self.type_size} bytes"
            )
        return row_bytes // self.type_size * self.block_size

    def quantize(self, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Encode float32 (..., n) as uint8 (..., row_bytes).

        Bit-exact with ggml's ``quantize_row_*_ref`` (what ``ggml_set_rows`` stores into a cache on the CPU, up to the
        last bit that its SIMD variants may differ in). A NaN or an infinity makes the scale of its block NaN or
        infinite, so that it stays visible. Raises LayoutError when n is not a multiple of the block size.
        """
        values = np.ascontiguousarray(values, dtype=np.float32)
        n_bytes = self.row_bytes(values.shape[-1])
        if not values.size:
            return np.empty((*values.shape[:-1], n_bytes), np.uint8)
        with np.errstate(all="ignore"):
            encoded = self._encode(values.reshape(-1, self.block_size))
        return encoded.reshape(*values.shape[:-1], n_bytes)

    def dequantize(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Decode uint8 (..., row_bytes) into float32 (..., n), bit-exact with ggml's ``dequantize_row_*``.

        Raises LayoutError when row_bytes is not a multiple of the block's bytes.
        """
        rows = np.ascontiguousarray(rows, dtype=np.uint8)
        n = self.n_elements(rows.shape[-1])
        if not rows.size:
            return np.empty((*rows.shape[:-1], n), np.float32)
        with np.errstate(all="ignore"):
            decoded = self._decode(rows.reshape(-1, self.type_size))
        return decoded.reshape(*rows.shape[:-1], n)

    def all_finite(self, rows: NDArray[np.uint8]) -> bool:
        """Whether no element of uint8 (..., row_bytes) is NaN or infinite (for blocks: no scale is)."""
        rows = np.ascontiguousarray(rows, dtype=np.uint8)
        self.n_elements(rows.shape[-1])
        return not rows.size or self._finite(rows.reshape(-1, self.type_size))


def half_column(blocks: NDArray[np.uint8], start: int) -> NDArray[np.float32]:
    """The float16 at byte ``start`` of every block, as float32 (n_blocks, 1)."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def as_half_bytes(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Float32 (n_blocks, 1), rounded to float16, as uint8 (n_blocks, 2)."""
    return values.astype(np.float16).view(np.uint8)


def half_bits_finite(bits: NDArray[np.uint16]) -> bool:
    """Whether no float16 given by its bits is NaN or infinite: those have all exponent bits set."""
    return not bool(np.any((bits & 0x7C00) == 0x7C00))
