"""ggml's own row converters, called in the libraries that llama-cpp-python bundles.

They are the code that fills the live cache (ggml/src/ggml-cpu/quants.c, ggml-cpu.c; ggml/src/ggml-quants.c), several times
faster than numpy, and release the interpreter lock. A function that a build does not export falls back to numpy.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.engine.llama.native import bundled_library
from kvnotes_local.kv.converter import NUMPY, RowConverter
from kvnotes_local.kv.layout import GGMLType

_TO_F32 = {
    GGMLType.F16: ("ggml-cpu", "ggml_cpu_fp16_to_fp32"),
    GGMLType.BF16: ("ggml-cpu", "ggml_cpu_bf16_to_fp32"),
    GGMLType.Q8_0: ("ggml-base", "dequantize_row_q8_0"),
    GGMLType.Q5_1: ("ggml-base", "dequantize_row_q5_1"),
    GGMLType.Q5_0: ("ggml-base", "dequantize_row_q5_0"),
    GGMLType.Q4_1: ("ggml-base", "dequantize_row_q4_1"),
    GGMLType.Q4_0: ("ggml-base", "dequantize_row_q4_0"),
    GGMLType.IQ4_NL: ("ggml-base", "dequantize_row_iq4_nl"),
}
_FROM_F32 = {
    GGMLType.F16: ("ggml-cpu", "ggml_cpu_fp32_to_fp16"),
    GGMLType.BF16: ("ggml-cpu", "ggml_cpu_fp32_to_bf16"),
    GGMLType.Q8_0: ("ggml-cpu", "quantize_row_q8_0"),
    GGMLType.Q5_1: ("ggml-cpu", "quantize_row_q5_1"),
    GGMLType.Q5_0: ("ggml-cpu", "quantize_row_q5_0"),
    GGMLType.Q4_1: ("ggml-cpu", "quantize_row_q4_1"),
    GGMLType.Q4_0: ("ggml-cpu", "quantize_row_q4_0"),
    GGMLType.IQ4_NL: ("ggml-cpu", "quantize_row_iq4_nl"),
}


class GGMLConverter:
    """A ``RowConverter`` made of ggml's functions. llama.cpp must be initialised before (``native.start``)."""

    def __init__(self, fallback: RowConverter = NUMPY) -> None:
        self._fallback = fallback
        self._to_f32 = {type: function for type, name in _TO_F32.items() if (function := _find(*name))}
        self._from_f32 = {type: function for type, name in _FROM_F32.items() if (function := _find(*name))}

    def dequantize(self, type: GGMLType, rows: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        function = self._to_f32.get(type)
        if function is None:
            self._fallback.dequantize(type, rows, out)
        else:
            function(rows.ctypes.data, out.ctypes.data, out.size)

    def quantize(self, type: GGMLType, values: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
        function = self._from_f32.get(type)
        if function is None:
            self._fallback.quantize(type, values, out)
        else:
            function(values.ctypes.data, out.ctypes.data, values.size)


def _find(library: str, name: str) -> Any:
    function = None
    loaded = bundled_library(library)  # without it numpy does the work
    if loaded is not None:
        function = getattr(loaded, name, None)
    if function is not None:
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        function.restype = None
    return function
