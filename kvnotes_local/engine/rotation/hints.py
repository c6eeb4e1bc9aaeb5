"""What a model's metadata suggests about its rotation: guesses, which the measurement confirms or drops."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np

from kvnotes_local.engine.rotation.arithmetic import RopeHints, Yarn
from kvnotes_local.engine.rotation.fit import RowShape

_N_CTX_STEP = 256
_SHAPE_KEYS = (
    ("attention.key_length", "rope.dimension_count"),
    ("attention.key_length_swa", "rope.dimension_count_swa"),
    ("attention.key_length_swa", "rope.dimension_count"),
    ("attention.key_length", "rope.dimension_count_swa"),
)


def probing_n_ctx(model: Any, n_ctx: int) -> int:
    """The smallest context on the same side of the model's original context length as ``n_ctx``.

    llama.cpp rounds contexts up to multiples of 256 before it chooses between long and short frequency factors.
    """
    n_ctx = -(-n_ctx // _N_CTX_STEP) * _N_CTX_STEP
    original = _meta_int(model, "rope.scaling.original_context_length") or _meta_int(model, "context_length") or 0
    if n_ctx > original and _meta(model, "rope.scaling.type") in (None, "longrope"):
        return (original // _N_CTX_STEP + 1) * _N_CTX_STEP
    return _N_CTX_STEP


def row_shapes(model: Any) -> list[RowShape]:
    """Divisions of a key row that the metadata suggests; whether one is right, the residual tells."""
    n_head = int(api.llama_model_n_head(model))
    default = int(api.llama_model_n_embd(model)) // n_head if n_head else 0
    shapes = []
    for dim_key, rot_key in _SHAPE_KEYS:
        head_dim = _meta_int(model, dim_key) or default
        n_rot = _meta_int(model, rot_key) or head_dim
        if head_dim and n_rot <= head_dim:
            shapes.append(RowShape(head_dim, n_rot))
    return list(dict.fromkeys(shapes))


def rope_hints(model: Any, overrides: dict[str, Any]) -> RopeHints:
    """Mirrors src/llama-context.cpp (constructor of ``llama_context``) and src/llama-model.cpp (``load_hparams``)."""

    def positive(override: str, *keys: str) -> list[float]:
        values = [float(overrides.get(override, 0.0)), *(_meta_float(model, key) or 0.0 for key in keys)]
        return [value for value in values if value > 0]

    factors = [1 / np.float32(f) for f in positive("", "rope.scaling.factor", "rope.scale_linear")]
    scales = [*positive("rope_freq_scale"), *(float(np.float32(f)) for f in factors)]
    n_ctx_orig = [int(n) for n in positive("yarn_orig_ctx", "rope.scaling.original_context_length", "context_length")]
    fast = [*positive("yarn_beta_fast", "rope.scaling.yarn_beta_fast"), 32.0]
    slow = [*positive("yarn_beta_slow", "rope.scaling.yarn_beta_slow"), 1.0]
    ext = [*positive("yarn_ext_factor", "rope.scaling.yarn_ext_factor"), 1.0]
    chosen = overrides.get("rope_scaling_type", api.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED)
    is_yarn = chosen == api.LLAMA_ROPE_SCALING_TYPE_YARN or (
        chosen == api.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED and _meta(model, "rope.scaling.type") == "yarn"
    )
    yarns = [Yarn(n_ctx_orig[0], f, s, ext[0]) for f, s in zip(fast, slow, strict=False)] if is_yarn else []
    bases = [*positive("rope_freq_base", "rope.freq_base", "rope.freq_base_swa"), 10000.0]
    return RopeHints(tuple(dict.fromkeys(bases)), tuple(dict.fromkeys(scales)), tuple(dict.fromkeys(yarns)))


def _meta(model: Any, key: str) -> str | None:
    """A scalar of the model's architecture, e.g. ``rope.freq_base``."""
    arch = _meta_text(model, "general.architecture")
    return _meta_text(model, f"{arch}.{key}")


def _meta_int(model: Any, key: str) -> int | None:
    text = _meta(model, key)
    return int(text) if text is not None and text.isdigit() else None


def _meta_float(model: Any, key: str) -> float | None:
    text = _meta(model, key)
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _meta_text(model: Any, key: str) -> str | None:
    buffer = ctypes.create_string_buffer(256)
    n = int(api.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer)))
    return buffer.value.decode("utf-8", "replace") if 0 <= n < len(buffer) else None
