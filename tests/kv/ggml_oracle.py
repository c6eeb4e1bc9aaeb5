"""ggml itself, called through ctypes, as the judge of what kvnotes_local.kv computes."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.kv.block_types import block_type
from kvnotes_local.kv.layout import GGMLType

_P = ctypes.c_void_p
_REF_NAMES = {
    GGMLType.F16: "ggml_fp32_to_fp16_row",
    GGMLType.BF16: "ggml_fp32_to_bf16_row_ref",
    GGMLType.Q8_0: "quantize_row_q8_0_ref",
    GGMLType.Q5_1: "quantize_row_q5_1_ref",
    GGMLType.Q5_0: "quantize_row_q5_0_ref",
    GGMLType.Q4_1: "quantize_row_q4_1_ref",
    GGMLType.Q4_0: "quantize_row_q4_0_ref",
    GGMLType.IQ4_NL: "quantize_row_iq4_nl_ref",
}
_BACK_NAMES = {
    GGMLType.F16: "ggml_fp16_to_fp32_row",
    GGMLType.BF16: "ggml_bf16_to_fp32_row",
    **{
        t: name.replace("quantize", "dequantize").removesuffix("_ref")
        for t, name in _REF_NAMES.items()
        if t not in (1, 30)
    },
}


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", _P), ("no_alloc", ctypes.c_bool))


def _load(name: str) -> ctypes.CDLL:
    spec = importlib.util.find_spec("llama_cpp")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "lib"
    suffix = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
    prefix = "" if sys.platform == "win32" else "lib"
    return ctypes.CDLL(str(folder / f"{prefix}{name}.{suffix}"))


@cache
def base() -> ctypes.CDLL:
    return _load("ggml-base")


@cache
def cpu() -> ctypes.CDLL:
    base()
    library = _load("ggml-cpu")
    library.ggml_cpu_init()
    return library


def call(library: ctypes.CDLL, name: str, result: object, *arguments: object) -> object:
    """Call a C function, passing what are not ctypes numbers already as pointers."""
    function = getattr(library, name)
    function.restype = result
    return function(*[a if isinstance(a, ctypes._SimpleCData | ctypes.Structure) else _P(a) for a in arguments])  # type: ignore[arg-type]


def quantize(type: GGMLType, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """ggml's reference quantizer on float32 (m, n)."""
    values = np.ascontiguousarray(values, np.float32)
    if type is GGMLType.F32:
        return values.view(np.uint8)
    out = np.zeros((len(values), block_type(type).row_bytes(values.shape[1])), np.uint8)
    call(base(), _REF_NAMES[type], None, values.ctypes.data, out.ctypes.data, ctypes.c_int64(values.size))
    return out


def dequantize(type: GGMLType, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """ggml's decoder on uint8 (m, row_bytes)."""
    if type is GGMLType.F32:
        return rows.view(np.float32)
    out = np.zeros((len(rows), block_type(type).n_elements(rows.shape[1])), np.float32)
    call(base(), _BACK_NAMES[type], None, rows.ctypes.data, out.ctypes.data, ctypes.c_int64(out.size))
    return out


class Graph:
    """A ggml context for one small computation on the CPU backend."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def tensor(self, type: GGMLType | int, *shape: int) -> int:
        ne = (ctypes.c_int64 * len(shape))(*shape)
        return int(self.op("ggml_new_tensor", ctypes.c_int(type), ctypes.c_int(len(shape)), ctypes.addressof(ne)))

    def put(self, array: NDArray[np.generic]) -> int:
        """A new tensor that holds a float32, int32 or int64 array; ggml's dimensions are numpy's reversed."""
        type = {"float32": 0, "int32": 26, "int64": 27}[array.dtype.name]
        tensor = self.tensor(type, *reversed(array.shape))
        array = np.ascontiguousarray(array)
        ctypes.memmove(self.data(tensor), array.ctypes.data, array.nbytes)
        return tensor

    def op(self, name: str, *arguments: object) -> int:
        return int(call(base(), name, _P, self.handle, *arguments) or 0)  # type: ignore[call-overload]

    def data(self, tensor: int) -> int:
        return int(call(base(), "ggml_get_data", _P, tensor))  # type: ignore[call-overload]

    def compute(self, tensor: int) -> None:
        graph = self.op("ggml_new_graph")
        call(base(), "ggml_build_forward_expand", None, graph, tensor)
        status = call(cpu(), "ggml_graph_compute_with_ctx", ctypes.c_int, self.handle, graph, ctypes.c_int(1))
        assert status == 0

    def read(self, tensor: int, shape: tuple[int, ...], dtype: type[np.generic] = np.float32) -> NDArray[np.generic]:
        out = np.empty(shape, dtype)
        ctypes.memmove(out.ctypes.data, self.data(tensor), out.nbytes)
        return out


@contextmanager
def graph(mem_size: int = 64 << 20) -> Iterator[Graph]:
    cpu()
    handle = call(base(), "ggml_init", _P, _InitParams(mem_size, None, False))
    assert isinstance(handle, int)
    try:
        yield Graph(handle)
    finally:
        call(base(), "ggml_free", None, handle)


def rope(
    keys: NDArray[np.float32],
    positions: NDArray[np.int32],
    *,
    n_rot: int,
    mode: int,
    freq_base: float,
    freq_factors: NDArray[np.float32] | None = None,
    n_ctx_orig: int = 4096,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    sections: tuple[int, int, int, int] | None = None,
) -> NDArray[np.float32]:
    """ggml's RoPE on the CPU: keys float32 (n_cells, n_head, head_dim)."""
    with graph() as g:
        a = g.put(keys)
        p = g.put(positions.astype(np.int32) if sections is None else _four_positions(positions))
        c = None if freq_factors is None else g.put(freq_factors.astype(np.float32))
        floats = [ctypes.c_float(x) for x in (freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow)]
        if sections is None:
            ints = [ctypes.c_int(x) for x in (n_rot, mode, n_ctx_orig)]
            out = g.op("ggml_rope_ext", a, p, c, *ints, *floats)
        else:
            four = (ctypes.c_int * 4)(*sections)
            ints = [ctypes.c_int(x) for x in (mode, n_ctx_orig)]
            out = g.op("ggml_rope_multi", a, p, c, ctypes.c_int(n_rot), ctypes.addressof(four), *ints, *floats)
        g.compute(out)
        return g.read(out, keys.shape)


def _four_positions(positions: NDArray[np.int32]) -> NDArray[np.int32]:
    """What llama.cpp feeds to M-RoPE for text: three times the position, then zeros."""
    return np.concatenate((positions, positions, positions, np.zeros_like(positions))).astype(np.int32)


def store_into_cache(type: GGMLType, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """What ``ggml_set_rows`` leaves in a cache tensor of ``type`` for float32 (m, n)."""
    m, n = values.shape
    with graph() as g:
        cache_tensor = g.tensor(type, n, m)
        out = g.op("ggml_set_rows", cache_tensor, g.put(values), g.put(np.arange(m, dtype=np.int64)))
        g.compute(out)
        return g.read(cache_tensor, (m, block_type(type).row_bytes(n)), np.uint8)


def hadamard_product(rows: NDArray[np.float32], matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """``ggml_mul_mat(matrix, rows)`` with the hint that llama.cpp sets, so ggml's fast transform."""
    with graph() as g:
        out = g.op("ggml_mul_mat", g.put(matrix), g.put(rows))
        call(base(), "ggml_mul_mat_set_hint", None, out, ctypes.c_int(1))
        g.compute(out)
        return g.read(out, rows.shape)


@cache
def libm() -> tuple[Callable[[float], float], Callable[[float], float]]:
    """The C library's cosf and sinf."""
    library = ctypes.CDLL("libm.so.6")
    for function in (library.cosf, library.sinf):
        function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float]
    return library.cosf, library.sinf
