"""How a model is loaded and its context made."""

from __future__ import annotations

from dataclasses import dataclass

from kvnotes_local.kv.layout import GGMLType

DEFAULT_N_CTX = 8192
"""Tokens of a context when none are asked for and the model was trained on as many."""

MIN_SEQUENCES, MAX_SEQUENCES = 4, 256
"""A plan needs two beside the two spare ones; llama.cpp takes no more than LLAMA_MAX_SEQ."""


@dataclass(frozen=True)
class EngineParams:
    """How to load a model and make its context; 0 or None means: choose for me.

    ``n_ctx`` in tokens. ``n_sequences``: how many chats and forks the context holds at once, with two spare ones for building.
    ``n_gpu_layers`` -1 for all. ``flash_attn`` None for llama.cpp's own choice.
    """

    n_ctx: int = 0
    type_k: GGMLType = GGMLType.F16
    type_v: GGMLType = GGMLType.F16
    n_gpu_layers: int = -1
    n_threads: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    flash_attn: bool | None = None
    extra_buffers: bool = True
    n_sequences: int = 0
