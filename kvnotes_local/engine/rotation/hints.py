"""What a model's metadata suggests about its rotation: guesses, which the measurement confirms or drops."""

from __future__ import annotations

import numpy as np

from kvnotes_local.contract.params import CELL_PADDING, padded_n_ctx
from kvnotes_local.engine.llama.model import LlamaModel
from kvnotes_local.engine.rotation.arithmetic import RopeHints, Yarn
from kvnotes_local.engine.rotation.fit import RowShape

_SHAPE_KEYS = (
    ("attention.key_length", "rope.dimension_count"),
    ("attention.key_length_swa", "rope.dimension_count_swa"),
    ("attention.key_length_swa", "rope.dimension_count"),
    ("attention.key_length", "rope.dimension_count_swa"),
)


def probing_n_ctx(model: LlamaModel, n_ctx: int) -> int:
    """The smallest context on the same side of the model's original context length as ``n_ctx``.

    llama.cpp rounds contexts up before it chooses between long and short frequency factors.
    """
    n_ctx = padded_n_ctx(n_ctx)
    original = _meta_int(model, "rope.scaling.original_context_length") or _meta_int(model, "context_length") or 0
    if n_ctx > original and _meta(model, "rope.scaling.type") in (None, "longrope"):
        return padded_n_ctx(original + 1)
    return CELL_PADDING


def row_shapes(model: LlamaModel) -> list[RowShape]:
    """Divisions of a key row that the metadata suggests; whether one is right, the residual tells."""
    default = model.n_embd // model.n_head if model.n_head else 0
    shapes = []
    for dim_key, rot_key in _SHAPE_KEYS:
        head_dim = _meta_int(model, dim_key) or default
        n_rot = _meta_int(model, rot_key) or head_dim
        if head_dim and n_rot <= head_dim:
            shapes.append(RowShape(head_dim, n_rot))
    return list(dict.fromkeys(shapes))


def rope_hints(model: LlamaModel) -> RopeHints:
    """Mirrors src/llama-context.cpp (constructor of ``llama_context``) and src/llama-model.cpp (``load_hparams``)."""

    def positive(*keys: str) -> list[float]:
        return [value for key in keys if (value := _meta_float(model, key) or 0.0) > 0]

    factors = [1 / np.float32(f) for f in positive("rope.scaling.factor", "rope.scale_linear")]
    scales = [float(np.float32(f)) for f in factors]
    n_ctx_orig = [int(n) for n in positive("rope.scaling.original_context_length", "context_length")]
    fast = [*positive("rope.scaling.yarn_beta_fast"), 32.0]
    slow = [*positive("rope.scaling.yarn_beta_slow"), 1.0]
    ext = [*positive("rope.scaling.yarn_ext_factor"), 1.0]
    is_yarn = _meta(model, "rope.scaling.type") == "yarn"
    yarns = [Yarn(n_ctx_orig[0], f, s, ext[0]) for f, s in zip(fast, slow, strict=False)] if is_yarn else []
    bases = [*positive("rope.freq_base", "rope.freq_base_swa"), 10000.0]
    return RopeHints(tuple(dict.fromkeys(bases)), tuple(dict.fromkeys(scales)), tuple(dict.fromkeys(yarns)))


def _meta(model: LlamaModel, key: str) -> str | None:
    """A scalar of the model's architecture, e.g. ``rope.freq_base``."""
    return model.metadata(f"{model.arch}.{key}")


def _meta_int(model: LlamaModel, key: str) -> int | None:
    text = _meta(model, key)
    return int(text) if text is not None and text.isdigit() else None


def _meta_float(model: LlamaModel, key: str) -> float | None:
    text = _meta(model, key)
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
