"""What can be reused of a model's memory, found by measurement: splice, prefix-only or prefill."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from kvnotes_local.contract.model_info import ModelClass
from kvnotes_local.engine.llama.context import LlamaContext
from kvnotes_local.engine.llama.model import LlamaModel
from kvnotes_local.engine.rotation.hints import probing_n_ctx
from kvnotes_local.engine.rotation.live_layout import read_live_layout
from kvnotes_local.engine.rotation.measurement import measure_rotation
from kvnotes_local.engine.rotation.record import from_json, rotation_fingerprint, to_json
from kvnotes_local.errors import LayoutError, RotationError
from kvnotes_local.kv.block_types import block_type
from kvnotes_local.kv.layout import StateLayout, TensorLayout
from kvnotes_local.kv.rotation import ModelRotation
from kvnotes_local.records import CachedRecord, Finite

_RECORD_VERSION = 1


@dataclass(frozen=True, eq=False)
class Classified:
    """A model's class and what splicing needs to know; ``rotation`` and ``layout`` are None where nothing can be moved."""

    model_class: ModelClass
    reason: str
    layout: StateLayout | None = None
    rotation: ModelRotation | None = None
    residual: float | None = None

    @property
    def rotation_fingerprint(self) -> str:
        return rotation_fingerprint(self.rotation) if self.rotation is not None else ""

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values that one token takes in the live cache; 0 where it is not known."""
        if self.layout is None:
            return 0
        return sum(
            _row_bytes(layer.k) + (_row_bytes(layer.v) if layer.v else 0)
            for cache in self.layout.caches
            for layer in cache.layers
        )


@dataclass(frozen=True)
class StoredRotation:
    """What is remembered of a measurement. ``rotation``: as ``to_json`` writes it."""

    rotation: str
    residual: Finite


def classify(
    model: LlamaModel, context: LlamaContext, spare: int, fingerprint: str, cache_dir: Path | None
) -> Classified:
    """Class of a model in a context. ``spare``: an empty sequence. The rotation is measured once per model and remembered
    in ``cache_dir/rotations``, keyed by what it depends on (see ``measure_rotation``)."""
    if model.is_hybrid or model.is_recurrent:
        kind = "hybrid" if model.is_hybrid else "recurrent"
        return Classified(
            ModelClass.PREFIX_ONLY,
            f"{kind} model: its state is one for the whole text, so a skill can be restored at the start of a chat only",
        )
    if not model.is_decoder:
        return Classified(ModelClass.PREFILL, "not a decoder-only model: it has no cache that could be reused")
    try:
        rotation, residual = _rotation(model, context, fingerprint, cache_dir)
        layout = read_live_layout(model, context, spare, probe_token(model))
    except (RotationError, LayoutError) as error:
        return Classified(ModelClass.PREFILL, str(error))
    reason = f"keys are a rotation (worst residual {residual:.1e})"
    return Classified(ModelClass.SPLICE, reason, layout, rotation, residual)


def _rotation(
    model: LlamaModel, context: LlamaContext, fingerprint: str, cache_dir: Path | None
) -> tuple[ModelRotation, float]:
    record = None
    if cache_dir is not None:
        # Another backend rounds angles otherwise; a larger context may choose other frequency factors.
        parts = (
            fingerprint,
            probing_n_ctx(model, context.n_ctx),
            model.on_gpu,
            version("llama-cpp-python"),
            _RECORD_VERSION,
        )
        key = "|".join(map(str, parts))
        name = f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
        record = CachedRecord(cache_dir / "rotations" / name, StoredRotation)
        known = record.load()
        if known is not None:
            with contextlib.suppress(RotationError):  # damaged: it is measured again
                return from_json(known.rotation), known.residual
    measured = measure_rotation(model, n_ctx=context.n_ctx, n_threads=context.n_threads)
    if record is not None:
        record.save(StoredRotation(to_json(measured.rotation), measured.residual))
    return measured.rotation, measured.residual


def _row_bytes(tensor: TensorLayout) -> int:
    return block_type(tensor.type).row_bytes(tensor.n_embd)


def probe_token(model: LlamaModel) -> int:
    tokens = model.tokenize("The", special=False)
    return tokens[0] if tokens else 0
