"""What each model of the zoo is: metadata, optional tensors, and how kvnotes-local has to class it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .build import MetaValue

Expected = Literal["splice", "prefix-only", "prefill"]


@dataclass(frozen=True)
class ZooModel:
    """One tiny random model.

    ``variant``: words that say what is special about it. ``keys``, ``keep``, ``tensors``: see ``build_model``.
    ``expected``: its class. ``notes``: why, or what to look out for.
    """

    name: str
    arch: str
    expected: Expected = "splice"
    variant: tuple[str, ...] = ()
    keys: Mapping[str, MetaValue] = field(default_factory=dict)
    keep: str = ""
    tensors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    notes: str = ""


def transformer(
    *,
    n_embd: int = 128,
    n_layer: int = 2,
    n_head: int = 4,
    n_head_kv: int = 2,
    head_dim: int = 64,
    n_ctx: int = 8192,
    **more: MetaValue,
) -> dict[str, MetaValue]:
    """Metadata that every attention model needs; ``more`` is added with double underscores read as dots."""
    keys: dict[str, MetaValue] = {
        ".context_length": n_ctx,
        ".embedding_length": n_embd,
        ".block_count": n_layer,
        ".feed_forward_length": 2 * n_embd,
        ".attention.head_count": n_head,
        ".attention.head_count_kv": n_head_kv,
        ".attention.key_length": head_dim,
        ".attention.value_length": head_dim,
        ".attention.layer_norm_rms_epsilon": 1e-6,
        ".rope.dimension_count": head_dim,
        ".rope.freq_base": 10000.0,
    }
    keys |= {"." + key.replace("__", "."): value for key, value in more.items()}
    return keys


MODELS: tuple[ZooModel, ...] = (
    ZooModel("llama", "llama", keys=transformer()),
    ZooModel(
        "qwen2",
        "qwen2",
        variant=("qkv bias",),
        keys=transformer(n_embd=256, rope__freq_base=1e6),
        keep=r"attn_[qkv]\.bias",
    ),
    ZooModel(
        "gemma3",
        "gemma3",
        variant=("sliding window", "two bases"),
        keys=transformer(
            n_layer=6,
            rope__freq_base=1e6,
            rope__freq_base_swa=10000.0,
            attention__sliding_window=64,
            attention__sliding_window_pattern=3,
        ),
    ),
)
