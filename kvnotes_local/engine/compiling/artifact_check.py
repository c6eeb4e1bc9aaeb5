"""Does an artifact hold what the model computes? A sample of its rows is computed again, each on the rows before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.artifacts.artifact import Artifact
from kvnotes_local.contract.params import EngineParams, padded_n_ctx
from kvnotes_local.contract.protocol import RowCheck
from kvnotes_local.engine.llama.context import AbortFlag, LlamaContext
from kvnotes_local.engine.llama.model import LlamaModel
from kvnotes_local.engine.rotation.live_layout import read_live_layout
from kvnotes_local.engine.rotation.model_class import Classified, probe_token
from kvnotes_local.engine.sequences.rows_transfer import RowsTransfer, TransferStats
from kvnotes_local.errors import ArtifactError
from kvnotes_local.kv.block_types import block_type
from kvnotes_local.kv.converter import RowConverter
from kvnotes_local.kv.layout import GGMLType, StateRows, TensorLayout
from kvnotes_local.kv.rows import slice_rows

_CHAT, _SPARE = 0, 1


def check_rows_of(
    artifact: Artifact,
    model: LlamaModel,
    classified: Classified,
    params: EngineParams,
    converter: RowConverter,
    abort: AbortFlag,
    lead: Sequence[int],
    spans: Sequence[tuple[int, int]],
) -> RowCheck:
    """Compare rows ``start … stop`` of each span with what the model computes behind ``lead`` and the artifact's own rows
    before them. Spans ascend and do not overlap. The artifact's positions need not be those behind the lead.

    Raises ArtifactError for a whole state and where rows are missing, EngineError, Cancelled.
    """
    rows = artifact.rows()
    tokens = artifact.meta.tokens
    if any(len(cache.pos) != len(tokens) for cache in rows.caches if cache.k):
        raise ArtifactError(f"{artifact.path} lacks rows for some of its tokens; let it be exported again")
    context = LlamaContext(
        model,
        replace(
            params,
            type_k=GGMLType.F16,
            type_v=GGMLType.F16,
            n_ctx=max(params.n_ctx, padded_n_ctx(len(lead) + len(tokens) + 1)),
        ),
        n_seq=2,
        abort=abort,
    )
    try:
        layout = read_live_layout(model, context, _SPARE, probe_token(model))
        transfer = RowsTransfer(context, layout, classified.rotation, _SPARE, model.n_swa, converter)
        plain = layout.plain().with_types(lambda tensor: GGMLType.F32)
        context.decode(_CHAT, lead, 0)
        done, errors = 0, []
        for start, stop in spans:
            if start > done:
                transfer.write(slice_rows(rows, done, start), _CHAT, len(lead) + done, TransferStats())
            context.decode(_CHAT, tokens[start:stop], len(lead) + start)
            computed = transfer.read(_CHAT, len(lead) + start, len(lead) + stop)
            stored = slice_rows(rows, start, stop)
            moved = transfer.moved(stored, len(lead) - artifact.meta.position_start, plain)
            errors.append(_row_errors(moved, transfer.moved(computed, 0, plain)))
            # What comes next stands on the artifact's rows, not on the recomputed ones.
            context.remove(_CHAT, len(lead) + start)
            done = start
    finally:
        context.close()
    all_errors = np.concatenate(errors)
    return RowCheck(len(all_errors), float(all_errors.mean()), float(all_errors.max()))


def _row_errors(stored: StateRows, computed: StateRows) -> NDArray[np.float64]:
    """float64 (n,): the distance of each row from the computed one, relative to that one's length, mean over all layers."""
    parts = [
        _relative(tensor, a, b)
        for layout, one, other in zip(stored.layout.caches, stored.caches, computed.caches, strict=True)
        for layer, k, v, other_k, other_v in zip(layout.layers, one.k, one.v, other.k, other.v, strict=True)
        for tensor, a, b in ((layer.k, k, other_k), (layer.v, v, other_v))
        if tensor is not None and a is not None and b is not None
    ]
    # A row with NaN is no row of this model.
    mean: NDArray[np.float64] = np.mean(parts, axis=0)
    return np.where(np.isnan(mean), np.inf, mean)


def _relative(tensor: TensorLayout, a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.float64]:
    dequantize = block_type(tensor.type).dequantize
    one, other = dequantize(a).astype(np.float64), dequantize(b).astype(np.float64)
    length = np.maximum(np.linalg.norm(other, axis=1), 1e-9)
    distance: NDArray[np.float64] = np.linalg.norm(one - other, axis=1) / length
    return distance
