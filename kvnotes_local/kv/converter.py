"""How rows get from bytes to float32 and back; replaceable, so that the engine can put in ggml's SIMD code."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.kv.block_types import block_type
from kvnotes_local.kv.layout import GGMLType


class RowConverter(Protocol):
    """Both methods get C-contiguous 2-D arrays of equally many rows and fill ``out`` completely."""

    def dequantize(self, type: GGMLType, rows: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """uint8 (m, row_bytes) to float32 (m, n_embd). ``rows`` may be read-only and unaligned."""

    def quantize(self, type: GGMLType, values: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
        """float32 (m, n_embd) to uint8 (m, row_bytes). ``out`` may be unaligned."""


class NumpyConverter:
    """The reference: the codecs of block_types.py."""

    def dequantize(self, type: GGMLType, rows: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        if type is GGMLType.F16:
            np.copyto(out, rows.view(np.float16))
        elif type is GGMLType.F32:
            np.copyto(out, rows.view(np.float32))
        else:
            out[...] = block_type(type).dequantize(rows)

    def quantize(self, type: GGMLType, values: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
        if type is GGMLType.F16:
            with np.errstate(over="ignore", invalid="ignore"):
                np.copyto(out.view(np.float16), values, casting="same_kind")
        elif type is GGMLType.F32:
            np.copyto(out.view(np.float32), values)
        else:
            out[...] = block_type(type).quantize(values)


NUMPY: RowConverter = NumpyConverter()
