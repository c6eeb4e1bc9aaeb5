"""Measure how a model rotates its keys, instead of looking up RoPE parameters.

A sequence of one token attends only to itself, so what a layer caches for it at position p is R(p)·k with the same k
for every p. Single tokens are decoded at position 0 and at others, in a small float32 context of their own, and
``rotation_fit`` finds R. Scaled variants (linear, YaRN, frequency factors, long/short factors), layers without
rotation, partial rotation and M-RoPE need no knowledge of their formulas. Keys whose length grows with a factor (YaRN)
do so at every position alike, hence the factor cancels and must not be applied when rows are moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama.context import LlamaContext, Run
from kvnotes_local.engine.llama.model import LlamaModel
from kvnotes_local.engine.rotation.arithmetic import RopeHints, angle_error, find_arithmetic, ideal_frequencies
from kvnotes_local.engine.rotation.fit import EXACT, LayerFit, RowShape, fit_layer
from kvnotes_local.engine.rotation.hints import probing_n_ctx, rope_hints, row_shapes
from kvnotes_local.errors import RotationError
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
_PROBE_TEXT = "The quick brown fox jumps over the lazy dog, 42 times; then it sleeps under a tree."


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
    model: LlamaModel, *, n_ctx: int, n_threads: int, tokens: Sequence[int] | None = None
) -> MeasuredRotation:
    """Measure the rotation of every layer's keys of ``model`` by decoding single tokens.

    ``n_ctx``: tokens a sequence of the context in use can have; models with long and short frequency factors choose by
    it (src/llama-model.cpp, ``get_rope_factors``), nothing else depends on it. ``tokens``: ids to probe with.

    A cached result holds for: the model file, the side of the model's original context length that ``n_ctx`` lies on,
    the version of llama.cpp, and the device that holds the cache (a GPU rounds angles differently).

    Raises RotationError if the model keeps recurrent state, or keys that are zero or no rotation of one another, and
    EngineError if llama.cpp cannot make the context or decode.
    """
    if model.is_recurrent or model.is_hybrid:
        kind = "hybrid" if model.is_hybrid else "recurrent"
        raise RotationError(
            f"{model.description} is a {kind} model: its state is not a row per token, so text cannot be moved. "
            "Restore whole states at the start of a chat instead."
        )
    probes = list(tokens) if tokens is not None else _probe_tokens(model)
    # Models with learned positions abort beyond the context that they were trained for.
    last = model.n_ctx_train - 1
    positions = np.array([*(p for p in POSITIONS if p < last), min(last, POSITIONS[-1])], np.int64)
    # Many positions in one batch are faster, and as good while a token's rounding does not depend on its place there.
    for positions_per_batch in (len(positions), 1):
        layout, fits = _fit_model(model, n_ctx, n_threads, positions, probes, positions_per_batch)
        residuals = tuple(tuple(fit.residual for fit in cache) for cache in fits)
        residual = max((r for cache in residuals for r in cache), default=0.0)
        if residual < EXACT or residual > HOPELESS:
            break
    if not residual < RESIDUAL_LIMIT:
        raise RotationError(
            f"The keys of {model.description} are not a rotation of one another: moved keys would be wrong by "
            f"{residual:.2g} of their length (allowed: {RESIDUAL_LIMIT:.0e}). Text for this model has to be read where "
            "it stands."
        )
    hints = rope_hints(model)
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
    model: LlamaModel,
    n_ctx: int,
    n_threads: int,
    positions: NDArray[np.int64],
    tokens: list[int],
    positions_per_batch: int,
) -> tuple[StateLayout, list[list[LayerFit]]]:
    n_probes = positions_per_batch * len(tokens)
    params = EngineParams(
        n_ctx=probing_n_ctx(model, n_ctx),
        type_k=GGMLType.F32,
        type_v=GGMLType.F32,
        n_threads=n_threads,
        n_batch=n_probes,
        n_ubatch=n_probes,
        flash_attn=False,
    )
    context = LlamaContext(model, params, n_seq=n_probes)
    try:
        layout, keys = _probe(context, positions, tokens, positions_per_batch)
    finally:
        context.close()
    for cache, layers in enumerate(keys):
        for layer, rows in enumerate(layers):
            if not rows.any(axis=(0, 2)).all():
                raise RotationError(
                    f"{model.description} wrote only zeros as keys of layer {layer} in cache {cache}, so its rotation "
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


def _probe(
    context: LlamaContext, positions: NDArray[np.int64], tokens: list[int], positions_per_batch: int
) -> tuple[StateLayout, list[list[NDArray[np.float32]]]]:
    """Keys by cache and layer: float32 (n_positions, n_tokens, n_embd).

    Every probe is a sequence of its own. Batches hold the same tokens in the same order and use the same cells.
    """
    if not context.memory:
        raise RotationError(f"{context.model.description} keeps no keys and values: there is nothing to reuse.")
    layout: StateLayout | None = None
    keys: list[list[NDArray[np.float32]]] = []
    for first in range(0, len(positions), positions_per_batch):
        here = positions[first : first + positions_per_batch]
        context.clear()
        probes = [(int(position), token) for position in here for token in tokens]
        context.decode_runs([Run(seq, (token,), position) for seq, (position, token) in enumerate(probes)])
        for seq in range(len(probes)):
            blob = context.get_state(seq)
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
    assert layout is not None
    return layout, keys


def _probe_tokens(model: LlamaModel) -> list[int]:
    """Ordinary tokens, different from one another: unused ones may have no embedding at all."""
    tokens = list(dict.fromkeys(model.tokenize(_PROBE_TEXT, special=False)))[:N_TOKENS]
    return tokens or [int(token) for token in np.linspace(0, model.n_vocab - 1, N_TOKENS)]
