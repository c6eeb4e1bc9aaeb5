"""Parameters completed by what a model says of itself, and what is told to the layers above about it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from importlib.metadata import version

import psutil

from kvnotes_local.chat_format.format import ChatFormat
from kvnotes_local.contract.model_info import ModelInfo
from kvnotes_local.contract.params import DEFAULT_N_CTX, MAX_SEQUENCES, MIN_SEQUENCES, EngineParams
from kvnotes_local.engine.llama.context import N_SEQUENCES
from kvnotes_local.engine.llama.model import LlamaModel
from kvnotes_local.engine.rotation.model_class import Classified
from kvnotes_local.errors import EngineError
from kvnotes_local.kv.layout import StateLayout
from kvnotes_local.models.parts import name_of_file
from kvnotes_local.wording import counted

MIN_N_CTX = 256


def completed(params: EngineParams, model: LlamaModel) -> EngineParams:
    """The parameters with what was left open chosen for this model. Raises EngineError for a context that is too small
    or cannot have so many sequences."""
    n_ctx = params.n_ctx or min(DEFAULT_N_CTX, model.n_ctx_train or DEFAULT_N_CTX)
    if n_ctx < MIN_N_CTX:
        # llama.cpp aborts the process when a batch has fewer tokens than sequences.
        raise EngineError(f"A context of {counted(n_ctx, 'token')} is too small. Use --n-ctx {MIN_N_CTX} or more.")
    # A recurrent state is reserved in full for every sequence.
    usual = N_SEQUENCES // 2 if model.is_recurrent or model.is_hybrid else N_SEQUENCES
    n_sequences = params.n_sequences or usual
    if not MIN_SEQUENCES <= n_sequences <= MAX_SEQUENCES:
        raise EngineError(
            f"A context of {counted(n_sequences, 'sequence')} cannot be made. Use --sequences {MIN_SEQUENCES} to {MAX_SEQUENCES}."
        )
    return replace(params, n_ctx=n_ctx, n_threads=params.n_threads or usable_cores(), n_sequences=n_sequences)


def usable_cores() -> int:
    """Cores that this process may run on, without hyper-threads where that can be known."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or allowed
    return max(1, min(allowed, physical))


def describe(
    model: LlamaModel,
    params: EngineParams,
    n_ctx: int,
    fingerprint: str,
    classified: Classified,
    chat_format: ChatFormat,
    whole_state: str,
) -> ModelInfo:
    """``n_ctx``: tokens of the context as it was made. ``whole_state``: see ``state_format``."""
    return ModelInfo(
        path=model.path,
        name=name_of_file(model.path),
        arch=model.arch,
        description=model.description,
        fingerprint=fingerprint,
        model_class=classified.model_class,
        class_reason=classified.reason,
        rotation_residual=classified.residual,
        rotation_fingerprint=classified.rotation_fingerprint or whole_state,
        n_params=model.n_params,
        n_bytes=model.n_bytes,
        n_ctx=n_ctx,
        n_ctx_train=model.n_ctx_train,
        n_swa=model.n_swa,
        n_vocab=model.n_vocab,
        type_k=params.type_k,
        type_v=params.type_v,
        kv_bytes_per_token=classified.bytes_per_token,
        chat_format=chat_format,
        llama_cpp_version=version("llama-cpp-python"),
        on_gpu=model.on_gpu,
    )


def state_format(params: EngineParams, layout: StateLayout | None) -> str:
    """What a whole state depends on besides the model: it is not converted, so the caches have to look the same."""
    seen = f"{layout!r} {params.type_k.name} {params.type_v.name} {params.flash_attn}"
    return hashlib.sha256(seen.encode()).hexdigest()[:32]
