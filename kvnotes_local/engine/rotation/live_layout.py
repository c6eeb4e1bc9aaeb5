"""What the live context's cache looks like, read from the context itself.

The state blob records types and row sizes but not whether rows were multiplied by a Walsh-Hadamard matrix
(llama.cpp, src/llama-kv-cache.cpp, ``attn_rot_k`` / ``attn_rot_v``). One token at position 0 tells: its rows are compared
with those that the same token has in an F32 context, as they are and multiplied by each possible matrix.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama.context import LlamaContext
from kvnotes_local.engine.llama.model import LlamaModel
from kvnotes_local.errors import LayoutError
from kvnotes_local.kv.block_types import block_type
from kvnotes_local.kv.hadamard import hadamard
from kvnotes_local.kv.layout import CacheLayout, CacheRows, GGMLType, StateLayout, StateRows
from kvnotes_local.kv.state import infer_layout, parse_state

MIN_COSINE = 0.97
"""A Q4_0 row keeps about 0.995 of its direction; an unrelated one about 0."""


def read_live_layout(model: LlamaModel, context: LlamaContext, seq: int, token: int) -> StateLayout:
    """Layout of a context's cache; ``seq`` must be an empty sequence and is empty afterwards.

    Raises LayoutError where the blob is not understood or the rows match no known matrix.
    """
    live = _rows_of_one_token(context, seq, token)
    reference_context = LlamaContext(
        model,
        EngineParams(n_ctx=256, type_k=GGMLType.F32, type_v=GGMLType.F32, flash_attn=False, n_threads=1),
        n_seq=1,
    )
    try:
        reference = _rows_of_one_token(reference_context, 0, token)
    finally:
        reference_context.close()
    caches = []
    for index, (layout, rows) in enumerate(zip(live.layout.caches, live.caches, strict=True)):
        caches.append(_with_hadamard(layout, rows, reference.layout.caches[index], reference.caches[index], index))
    return StateLayout(tuple(caches))


def _rows_of_one_token(context: LlamaContext, seq: int, token: int) -> StateRows:
    context.decode(seq, [token], 0, logits=True)
    blob = context.get_state(seq)
    context.remove(seq, 0)
    return parse_state(blob, infer_layout(blob))


def _with_hadamard(
    live: CacheLayout, rows: CacheRows, ref: CacheLayout, ref_rows: CacheRows, index: int
) -> CacheLayout:
    if not live.layers:
        return live
    # The first layer is enough: llama.cpp decides per cache. Its rows depend on no other layer's rounding.
    layer, ref_layer = live.layers[0], ref.layers[0]
    k = block_type(layer.k.type).dequantize(rows.k[0])
    ref_k = block_type(ref_layer.k.type).dequantize(ref_rows.k[0])
    k_block = _find_block(k, ref_k, f"keys of cache {index}")
    v_block = 0
    v_rows, ref_v_rows = rows.v[0], ref_rows.v[0]
    if layer.v is not None and v_rows is not None and ref_layer.v is not None and ref_v_rows is not None:
        v = block_type(layer.v.type).dequantize(v_rows)
        v_block = _find_block(v, block_type(ref_layer.v.type).dequantize(ref_v_rows), f"values of cache {index}")
    return replace(live, k_hadamard=k_block, v_hadamard=v_block)


def _find_block(live: NDArray[np.float32], reference: NDArray[np.float32], what: str) -> int:
    """Block length of the matrix that turns ``reference`` into ``live``, both float32 (1, n_embd); 0 for none."""
    n_embd = reference.shape[-1]
    blocks = [0] + [block for block in (64, 128, 256, 512, 1024) if n_embd % block == 0]
    cosines = [_cosine(live, hadamard(reference, block) if block else reference) for block in blocks]
    best = int(np.argmax(cosines))
    if not cosines[best] >= MIN_COSINE:
        raise LayoutError(
            f"The {what} match no known transformation (best cosine {cosines[best]:.3f}). "
            "This llama.cpp stores them in a way that kvnotes does not understand; use --kv-type f16."
        )
    return blocks[best]


def _cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.vdot(a, b)) / norm if norm > 0 else 1.0
