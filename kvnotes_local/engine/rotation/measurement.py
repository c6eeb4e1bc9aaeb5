"""Measure how a model rotates its keys, instead of looking up RoPE parameters.

A sequence of one token attends only to itself, so what a layer caches for it at position p is R(p)·k with the same k
for every p. Single tokens are decoded at position 0 and at others, in a small float32 context of their own, and
``rotation_fit`` finds R. Scaled variants (linear, YaRN, frequency factors, long/short factors), layers without
rotation, partial rotation and M-RoPE need no knowledge of their formulas. Keys whose length grows with a factor (YaRN)
do so at every position alike, hence the factor cancels and must not be applied when rows are moved.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np
from numpy.typing import NDArray

from kvnotes_local.engine.llama.pulse import PULSE
from kvnotes_local.engine.rotation.arithmetic import RopeHints, angle_error, find_arithmetic, ideal_frequencies
from kvnotes_local.engine.rotation.fit import EXACT, LayerFit, RowShape, fit_layer
from kvnotes_local.engine.rotation.hints import probing_n_ctx, rope_hints, row_shapes
from kvnotes_local.errors import EngineError, RotationError
from kvnotes_local.kv.angles import AngleArithmetic
from kvnotes_local.kv.layout import GGMLType, StateLayout
from kvnotes_local.kv.rotation import LayerRotation, ModelRotation, angles
from kvnotes_local.kv.state import infer_layout, parse_state

RESIDUAL_LIMIT = 1e-4
"""Keys that differ by more than this from a rotation are no rotation; float32 noise gives 1e-7."""

HOPELESS = 0.05
"""Beyond this a residual comes from the model, not from rounding that depends on the batch: nothing else is tried."""

N_TOKENS = 3

# Each at most four times the one before, so that angles can be unwrapped; none a power of two, since rounding is the
# same at all of these.
POSITIONS = (0, 1, 3, 11, 41, 163, 613, 2417, 4093, 7919, 12347, 18211, 24683, 32749)
_PROBE_TEXT = b"The quick brown fox jumps over the lazy dog, 42 times; then it sleeps under a tree."


@dataclass(frozen=True, eq=False)
class MeasuredRotation:
    """The rotation of a model's keys, and how well it holds.

    ``layout``: of the probing context (float32, values transposed), caches and layers in the order of every other
    context of this model. ``residual``: the worst of ``residuals``, which run parallel to ``rotation.caches``; see
    ``LayerFit``. ``angle_error``: worst distance in radians between measured angles and those of the rotation, over
    layers and probed positions; see ``rotation_arithmetic.angle_error``. ``max_position``: the farthest probed one.
    """

    rotation: ModelRotation
    layout: StateLayout
    residual: float
    residuals: tuple[tuple[float, ...], ...]
    angle_error: float
    max_position: int


def measure_rotation(
    model: Any, *, n_ctx: int, tokens: Sequence[int] | None = None, **context_overrides: Any
) -> MeasuredRotation:
    """Measure the rotation of every layer's keys of ``model`` (a ``llama_model *``) by decoding single tokens.

    ``n_ctx``: tokens a sequence of the context in use can have; models with long and short frequency factors choose by
    it (src/llama-model.cpp, ``get_rope_factors``), nothing else depends on it. ``tokens``: ids to probe with.
    ``context_overrides``: fields of ``llama_context_params`` in which the context in use departs from llama.cpp's
    defaults and which reach the rotation (``rope_scaling_type``, ``rope_freq_base``, ``rope_freq_scale``, ``yarn_*``),
    or speed (``n_threads``, ``n_threads_batch``, ``offload_kqv``).

    A cached result holds for: the model file, the side of the model's original context length that ``n_ctx`` lies on,
    those overrides, the version of llama.cpp, and the device that holds the cache (a GPU rounds angles differently).

    Raises RotationError if the model keeps recurrent state, or keys that are zero or no rotation of one another, and
    EngineError if llama.cpp cannot make the context or decode.
    """
    if api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model):
        kind = "hybrid" if api.llama_model_is_hybrid(model) else "recurrent"
        raise RotationError(
            f"{_describe(model)} is a {kind} model: its state is not a row per token, so text cannot be moved. "
            "Restore whole states at the start of a chat instead."
        )
    probes = list(tokens) if tokens is not None else _probe_tokens(model)
    # Models with learned positions abort beyond the context that they were trained for.
    last = int(api.llama_model_n_ctx_train(model)) - 1
    positions = np.array([*(p for p in POSITIONS if p < last), min(last, POSITIONS[-1])], np.int64)
    # Many positions in one batch are faster, and as good while a token's rounding does not depend on its place there.
    for positions_per_batch in (len(positions), 1):
        layout, fits = _fit_model(model, n_ctx, positions, probes, positions_per_batch, context_overrides)
        residuals = tuple(tuple(fit.residual for fit in cache) for cache in fits)
        residual = max((r for cache in residuals for r in cache), default=0.0)
        if residual < EXACT or residual > HOPELESS:
            break
    if not residual < RESIDUAL_LIMIT:
        raise RotationError(
            f"The keys of {_describe(model)} are not a rotation of one another: moved keys would be wrong by "
            f"{residual:.2g} of their length (allowed: {RESIDUAL_LIMIT:.0e}). Text for this model has to be read where "
            "it stands."
        )
    hints = rope_hints(model, context_overrides)
    rotation = ModelRotation(tuple(_with_arithmetic(positions, cache, hints) for cache in fits))
    errors = [
        angle_error(fit, angles(layer, positions))
        for cache, layers in zip(fits, rotation.caches, strict=True)
        for fit, layer in zip(cache, layers, strict=True)
    ]
    return MeasuredRotation(rotation, layout, residual, residuals, max(errors, default=0.0), int(positions[-1]))


def _with_arithmetic(positions: NDArray[np.int64], fits: list[LayerFit], hints: RopeHints) -> tuple[LayerRotation, ...]:
    layers: list[LayerRotation] = []
    known: AngleArithmetic | None = None
    for fit in fits:
        arithmetic = find_arithmetic(positions, fit, hints, known)
        if arithmetic is None:
            layers.append(fit.rotation)
            continue
        known = arithmetic
        ideal = ideal_frequencies(arithmetic, fit.rotation.n_rot // 2)
        layers.append(replace(fit.rotation, frequencies=ideal, arithmetic=arithmetic))
    return tuple(layers)


def _fit_model(
    model: Any,
    n_ctx: int,
    positions: NDArray[np.int64],
    tokens: list[int],
    positions_per_batch: int,
    overrides: dict[str, Any],
) -> tuple[StateLayout, list[list[LayerFit]]]:
    with _probing_context(model, n_ctx, positions_per_batch * len(tokens), overrides) as context:
        layout, keys = _probe(model, context, positions, tokens, positions_per_batch)
    for cache, layers in enumerate(keys):
        for layer, rows in enumerate(layers):
            if not rows.any(axis=(0, 2)).all():
                raise RotationError(
                    f"{_describe(model)} wrote only zeros as keys of layer {layer} in cache {cache}, so its rotation "
                    "cannot be measured. Text for this model has to be read where it stands."
                )
    shapes = row_shapes(model)
    return layout, [_fit_cache(positions, rows, shapes) for rows in keys]


def _fit_cache(
    positions: NDArray[np.int64], layers: list[NDArray[np.float32]], shapes: list[RowShape]
) -> list[LayerFit]:
    fits: list[LayerFit] = []
    found: LayerRotation | None = None
    for rows in layers:
        fit = fit_layer(positions, rows, shapes, found)
        found = fit.rotation if fit.rotation.n_rot else found
        fits.append(fit)
        if fit.residual > HOPELESS:
            break
    return fits


@contextmanager
def _probing_context(model: Any, n_ctx: int, n_tokens: int, overrides: dict[str, Any]) -> Iterator[Any]:
    params = api.llama_context_default_params()
    params.n_ctx = probing_n_ctx(model, n_ctx)
    params.n_batch = params.n_ubatch = params.n_seq_max = n_tokens
    params.n_threads = params.n_threads_batch = max(1, min((os.cpu_count() or 1) // 2, 8))
    params.kv_unified = True
    params.type_k = params.type_v = int(GGMLType.F32)
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.no_perf = True
    for name, value in overrides.items():
        if not hasattr(params, name):
            raise TypeError(f"llama_context_params has no field {name}")
        setattr(params, name, value)
    context = api.llama_init_from_model(model, params)
    if not context:
        raise EngineError(f"llama.cpp could not make a context of {params.n_ctx} tokens to measure {_describe(model)}")
    try:
        yield context
    finally:
        api.llama_free(context)


def _probe(
    model: Any, context: Any, positions: NDArray[np.int64], tokens: list[int], positions_per_batch: int
) -> tuple[StateLayout, list[list[NDArray[np.float32]]]]:
    """Keys by cache and layer: float32 (n_positions, n_tokens, n_embd).

    Every probe is a sequence of its own. Batches hold the same tokens in the same order and use the same cells.
    """
    memory = api.llama_get_memory(context)
    if not memory:
        raise RotationError(f"{_describe(model)} keeps no keys and values: there is nothing to reuse.")
    layout: StateLayout | None = None
    keys: list[list[NDArray[np.float32]]] = []
    batch = api.llama_batch_init(positions_per_batch * len(tokens), 0, 1)
    try:
        for first in range(0, len(positions), positions_per_batch):
            here = positions[first : first + positions_per_batch]
            api.llama_memory_clear(memory, False)
            batch.n_tokens = len(here) * len(tokens)
            for seq, (position, token) in enumerate((p, t) for p in here for t in tokens):
                batch.token[seq] = token
                batch.pos[seq] = int(position)
                batch.n_seq_id[seq] = 1
                batch.seq_id[seq][0] = seq
                batch.logits[seq] = 0
            with PULSE.piece("probe", batch.n_tokens):
                status = int(api.llama_decode(context, batch))
            if status:
                raise EngineError(f"llama.cpp could not decode to measure {_describe(model)} (status {status})")
            for seq in range(batch.n_tokens):
                blob = _state(context, seq)
                if layout is None:
                    layout = infer_layout(blob)
                    keys = [
                        [np.empty((len(positions), len(tokens), layer.k.n_embd), np.float32) for layer in cache.layers]
                        for cache in layout.caches
                    ]
                i, j = divmod(seq, len(tokens))
                for cache, rows in zip(keys, parse_state(blob, layout).caches, strict=True):
                    for layer_keys, row in zip(cache, rows.k, strict=True):
                        layer_keys[first + i, j] = row.view(np.float32)[0]
    finally:
        api.llama_batch_free(batch)
    assert layout is not None
    return layout, keys


def _state(context: Any, seq: int) -> bytearray:
    blob = bytearray(int(api.llama_state_seq_get_size(context, seq)))
    buffer = (ctypes.c_uint8 * len(blob)).from_buffer(blob)
    written = int(api.llama_state_seq_get_data(context, buffer, len(blob), seq))
    if written != len(blob):
        raise EngineError(f"llama.cpp wrote {written:,} of {len(blob):,} bytes of a sequence's state.")
    return blob


def _probe_tokens(model: Any) -> list[int]:
    """Ordinary tokens, different from one another: unused ones may have no embedding at all."""
    vocab = api.llama_model_get_vocab(model)
    n_vocab = int(api.llama_vocab_n_tokens(vocab))
    buffer = (api.llama_token * len(_PROBE_TEXT))()
    n = int(api.llama_tokenize(vocab, _PROBE_TEXT, len(_PROBE_TEXT), buffer, len(_PROBE_TEXT), False, False))
    tokens = list(dict.fromkeys(buffer[: max(n, 0)]))[:N_TOKENS]
    return tokens or [int(token) for token in np.linspace(0, n_vocab - 1, N_TOKENS)]


def _describe(model: Any) -> str:
    buffer = ctypes.create_string_buffer(256)
    api.llama_model_desc(model, buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")
