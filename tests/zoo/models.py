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
    *, n_embd: int = 128, n_layer: int = 2, n_head: int = 4, n_head_kv: int = 2, head_dim: int = 64, **more: MetaValue
) -> dict[str, MetaValue]:
    """Metadata that attention models need; ``more`` is added, and its double underscores stand for dots."""
    keys: dict[str, MetaValue] = {
        ".context_length": 8192,
        ".embedding_length": n_embd,
        ".block_count": n_layer,
        ".feed_forward_length": n_embd,
        ".attention.head_count": n_head,
        ".attention.head_count_kv": n_head_kv,
        ".attention.key_length": head_dim,
        ".attention.value_length": head_dim,
        ".attention.layer_norm_rms_epsilon": 1e-6,
        ".attention.layer_norm_epsilon": 1e-5,
        ".rope.dimension_count": head_dim,
        ".rope.freq_base": 10000.0,
    }
    return keys | {"." + key.replace("__", "."): value for key, value in more.items()}


def experts(n_ff: int = 64, n_expert: int = 4, n_used: int = 2) -> dict[str, MetaValue]:
    return {".expert_count": n_expert, ".expert_used_count": n_used, ".expert_feed_forward_length": n_ff}


def llama3_factors(n_rot: int, base: float, factor: float = 8.0, original: int = 2048) -> NDArray[np.float32]:
    """Divisors of the frequencies as Llama 3.1 has them: short waves stay, long ones are stretched by ``factor``."""
    wavelength = 2 * np.pi * base ** (np.arange(0, n_rot, 2) / n_rot)
    smooth = (original / wavelength - 1.0) / (4.0 - 1.0)
    between = 1.0 / ((1.0 - smooth) / factor + smooth)
    factors = np.where(wavelength < original / 4.0, 1.0, np.where(wavelength > original, factor, between))
    return factors.astype(np.float32)


def ramp(n: int, first: float, last: float) -> NDArray[np.float32]:
    return np.geomspace(first, last, n).astype(np.float32)


_SSM: dict[str, MetaValue] = {".ssm.conv_kernel": 4, ".ssm.inner_size": 256, ".ssm.state_size": 32}

_LLAMA = (
    ZooModel("llama", "llama", keys=transformer()),
    ZooModel(
        "llama-factors",
        "llama",
        variant=("frequency factors",),
        keys=transformer(rope__freq_base=500000.0, context_length=40960),
        keep="rope_freqs",
        tensors={"rope_freqs.weight": llama3_factors(64, 500000.0)},
        notes="Llama 3.1; a long context, so that far positions are probed",
    ),
    ZooModel(
        "llama-yarn",
        "llama",
        variant=("yarn",),
        keys=transformer(
            rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=2048
        ),
        notes="keys grow with YaRN's magnitude, at every position alike",
    ),
    ZooModel(
        "llama-linear",
        "llama",
        variant=("linear",),
        keys=transformer(rope__scaling__type="linear", rope__scaling__factor=4.0),
    ),
    ZooModel(
        "mistral3",
        "mistral3",
        variant=("yarn", "attention temperature"),
        keys=transformer(
            rope__freq_base=1e6,
            rope__scaling__type="yarn",
            rope__scaling__factor=16.0,
            rope__scaling__original_context_length=1024,
            rope__scaling__yarn_log_multiplier=1.0,
            attention__temperature_scale=0.1,
        ),
        notes="the query's temperature depends on the position, the keys do not",
    ),
    ZooModel(
        "llama4",
        "llama4",
        variant=("no rotation in some layers", "chunked attention", "experts", "norm behind the rotation"),
        keys=transformer(n_layer=4, n_embd=64, rope__freq_base=500000.0, interleave_moe_layer_step=2) | experts(),
    ),
)

_QWEN = (
    ZooModel(
        "qwen2",
        "qwen2",
        variant=("key biases",),
        keys=transformer(n_embd=256, rope__freq_base=1e6),
        keep=r"attn_[qkv]\.bias",
    ),
    ZooModel(
        "qwen3",
        "qwen3",
        variant=("head 128", "key norm"),
        keys=transformer(n_head=2, n_head_kv=1, head_dim=128, rope__freq_base=1e6),
    ),
    ZooModel("qwen3moe", "qwen3moe", variant=("experts",), keys=transformer(rope__freq_base=1e6) | experts()),
    ZooModel(
        "qwen2vl",
        "qwen2vl",
        variant=("m-rope",),
        keys=transformer(n_embd=256, rope__freq_base=1e6, rope__dimension_sections=(8, 12, 12, 0)),
        keep=r"attn_[qkv]\.bias",
        notes="cells carry 12 more bytes",
    ),
    ZooModel(
        "qwen3vl",
        "qwen3vl",
        variant=("interleaved m-rope",),
        keys=transformer(rope__freq_base=5e6, rope__dimension_sections=(12, 10, 10, 0)),
        notes="cells carry 12 more bytes",
    ),
)

_GEMMA = (
    ZooModel(
        "gemma2",
        "gemma2",
        variant=("sliding window", "head 256"),
        keys=transformer(n_head=1, n_head_kv=1, head_dim=256, n_layer=2, attention__sliding_window=64),
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
    ZooModel(
        "gemma4",
        "gemma4",
        variant=("sliding window", "two bases", "two head sizes", "proportional rotation", "shared layers"),
        keys=transformer(
            n_layer=6,
            n_head=2,
            n_head_kv=1,
            head_dim=128,
            attention__key_length_swa=64,
            attention__value_length_swa=64,
            rope__dimension_count_swa=64,
            rope__freq_base=1e6,
            rope__freq_base_swa=10000.0,
            attention__sliding_window=64,
            attention__sliding_window_pattern=(True, True, True, False, True, False),
            attention__shared_kv_layers=2,
            embedding_length_per_layer_input=16,
        ),
        keep="rope_freqs",
        tensors={"rope_freqs.weight": np.repeat(np.float32([1.0, 1e30]), [16, 48])},
        notes="a quarter of the pairs turns; the last layers use the keys of earlier ones",
    ),
)

_OTHERS = (
    ZooModel(
        "phi3",
        "phi3",
        variant=("long and short factors", "head 96"),
        keys=transformer(
            n_embd=192,
            n_head=2,
            n_head_kv=2,
            head_dim=96,
            rope__scaling__type="longrope",
            rope__scaling__original_context_length=1024,
            rope__scaling__attn_factor=1.19,
        ),
        keep="rope_factors",
        tensors={
            "rope_factors_long.weight": ramp(48, 1.08, 64.0),
            "rope_factors_short.weight": ramp(48, 1.0, 2.8),
        },
        notes="which factors hold depends on the context's size",
    ),
    ZooModel("olmo2", "olmo2", variant=("key norm over the row",), keys=transformer(n_embd=256, rope__freq_base=5e5)),
    ZooModel(
        "olmo3",
        "olmo2",
        variant=("sliding window", "yarn"),
        keys=transformer(
            n_head=2,
            n_head_kv=2,
            n_layer=4,
            rope__freq_base=5e5,
            rope__scaling__type="yarn",
            rope__scaling__factor=8.0,
            rope__scaling__original_context_length=1024,
            attention__sliding_window=64,
        ),
        notes="only the layers without a window are scaled",
    ),
    ZooModel(
        "cohere2",
        "cohere2",
        variant=("no rotation in some layers", "sliding window"),
        keys=transformer(n_embd=128, n_head=2, n_head_kv=1, n_layer=4, attention__sliding_window=64, logit_scale=0.25),
    ),
    ZooModel(
        "smollm3",
        "smollm3",
        variant=("no rotation in some layers",),
        keys=transformer(n_layer=4, rope__freq_base=5e6),
    ),
    ZooModel(
        "stablelm",
        "stablelm",
        variant=("partial rotation", "head 80"),
        keys=transformer(n_embd=160, n_head=2, n_head_kv=2, head_dim=80, rope__dimension_count=20),
        keep=r"norm\.bias",
    ),
    ZooModel(
        "glm4",
        "glm4",
        variant=("partial rotation", "head 128"),
        keys=transformer(n_head=2, n_head_kv=1, head_dim=128, rope__dimension_count=64),
    ),
    ZooModel(
        "gpt-oss",
        "gpt-oss",
        variant=("sliding window", "yarn", "sinks", "experts"),
        keys=transformer(
            rope__freq_base=150000.0,
            rope__scaling__type="yarn",
            rope__scaling__factor=32.0,
            rope__scaling__original_context_length=256,
            attention__sliding_window=64,
        )
        | experts(),
        keep=r"\.bias$",
    ),
    ZooModel(
        "deepseek2",
        "deepseek2",
        variant=("mla",),
        keys=transformer(
            n_head=2,
            n_head_kv=1,
            head_dim=576,
            attention__value_length=512,
            attention__key_length_mla=192,
            attention__value_length_mla=128,
            attention__kv_lora_rank=512,
            attention__q_lora_rank=64,
            rope__dimension_count=64,
            leading_dense_block_count=1,
            expert_shared_count=1,
        )
        | experts(),
        notes="one row of 512 latent and 64 rotated elements, no values",
    ),
    ZooModel(
        "deepseek2-heads",
        "deepseek2",
        variant=("rotation at the head's end", "head 192", "yarn"),
        keys=transformer(
            n_head=2,
            n_head_kv=2,
            head_dim=192,
            attention__value_length=128,
            attention__kv_lora_rank=64,
            attention__q_lora_rank=64,
            rope__dimension_count=64,
            rope__scaling__type="yarn",
            rope__scaling__factor=40.0,
            rope__scaling__original_context_length=1024,
            rope__scaling__yarn_log_multiplier=0.0707,
            leading_dense_block_count=1,
            expert_shared_count=1,
        )
        | experts(),
        notes="older files, which do not absorb the latent projection",
    ),
    ZooModel(
        "granite",
        "granite",
        variant=("scales",),
        keys=transformer(logit_scale=8.0, residual_scale=0.22, embedding_scale=12.0, attention__scale=0.015625),
    ),
    ZooModel(
        "falcon",
        "falcon",
        variant=("one key head", "parallel blocks"),
        keys=transformer(n_embd=256, n_head_kv=1),
        keep=r"norm\.bias",
    ),
    ZooModel(
        "bloom",
        "bloom",
        variant=("no rotation", "alibi"),
        keys=transformer(n_embd=128, n_head=2, n_head_kv=2),
        keep=r"\.bias$",
        notes="distances enter the attention scores only, so keys can be moved as they are",
    ),
)

_UNFIT = (
    ZooModel(
        "mamba",
        "mamba",
        "prefix-only",
        variant=("recurrent",),
        keys=transformer(n_head=0, n_head_kv=0, head_dim=0, feed_forward_length=0) | _SSM | {".ssm.time_step_rank": 8},
        keep=r"\.bias$",
    ),
    ZooModel(
        "falcon-h1",
        "falcon-h1",
        "prefix-only",
        variant=("hybrid",),
        keys=transformer() | _SSM | {".ssm.time_step_rank": 4, ".ssm.group_count": 1},
        keep=r"ssm.*\.bias$",
        notes="attention and state space in every layer",
    ),
    ZooModel(
        "granitehybrid",
        "granitehybrid",
        "prefix-only",
        variant=("hybrid",),
        keys=transformer(n_layer=3, attention__head_count_kv=(0, 2, 0))
        | _SSM
        | {".ssm.time_step_rank": 4, ".ssm.group_count": 1},
        keep=r"ssm.*\.bias$",
        notes="attention in one layer, state space in the others",
    ),
    ZooModel(
        "gpt2",
        "gpt2",
        "prefill",
        variant=("learned positions",),
        keys=transformer(n_head=2, n_head_kv=2, context_length=4096),
        keep=r"\.bias$",
        notes="the position is added to the input, so keys of different positions are no rotation of one another",
    ),
    ZooModel(
        "hunyuan-dense",
        "hunyuan-dense",
        "prefill",
        variant=("key norm behind the rotation",),
        keys=transformer(),
        notes="keys are multiplied by weights after they were turned, which a rotation does not undo",
    ),
    ZooModel(
        "minimax-m3",
        "minimax-m3",
        "prefill",
        variant=("sparse attention", "experts"),
        keys=transformer(
            n_head=2,
            attention__indexer__head_count=2,
            attention__indexer__key_length=64,
            attention__indexer__top_k=4,
            attention__indexer__block_size=4,
            attention__indexer__local_blocks=1,
            leading_dense_block_count=1,
            expert_shared_count=1,
            expert_weights_scale=1.0,
            expert_weights_norm=True,
            expert_gating_func=2,
            expert_shared_feed_forward_length=64,
            swiglu_clamp_exp=7.0,
        )
        | experts(),
        keep="exp_probs_b",
        notes="a second cache for the indexer's keys, which short texts leave empty",
    ),
)

MODELS: tuple[ZooModel, ...] = (*_LLAMA, *_QWEN, *_GEMMA, *_OTHERS, *_UNFIT)
