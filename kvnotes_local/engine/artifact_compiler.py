"""Computes the rows of an artifact: the tokens behind each lead, in an F16 context of their own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from kvnotes_local.engine.artifact import ArtifactMeta, StoreType, write_artifact, write_state_artifact
from kvnotes_local.engine.context import AbortFlag, LlamaContext
from kvnotes_local.engine.live_layout import read_live_layout
from kvnotes_local.engine.model import LlamaModel
from kvnotes_local.engine.model_class import Classified, probe_token
from kvnotes_local.engine.protocol import Compiled, CompileJob, EngineParams, ModelClass, ModelInfo, Progress
from kvnotes_local.engine.rotation_hints import probing_n_ctx
from kvnotes_local.engine.rows_transfer import RowsTransfer
from kvnotes_local.errors import ArtifactError
from kvnotes_local.kv.converter import RowConverter
from kvnotes_local.kv.layout import CacheLayout, GGMLType, StateLayout, StateRows, TensorLayout
from kvnotes_local.kv.rows import average_rows

_SPARE = 1


def compile_artifact(
    model: LlamaModel,
    info: ModelInfo,
    classified: Classified,
    params: EngineParams,
    converter: RowConverter,
    job: CompileJob,
    abort: AbortFlag,
    progress: Progress | None,
) -> Compiled:
    """Compute and write one artifact. Raises ArtifactError, ContextFullError, Cancelled."""
    if classified.model_class is ModelClass.PREFILL:
        raise ArtifactError(f"{info.name} cannot use artifacts: {classified.reason}")
    began = time.perf_counter()
    longest = max(map(len, job.leads)) + len(job.tokens)
    if longest > info.n_ctx:
        raise ArtifactError(
            f"{job.labels.skill} has {len(job.tokens):,} tokens; with the chat that it is read behind it needs a context of "
            f"{longest:,}, and this one has {info.n_ctx:,}. Use a larger --n-ctx or split the skill."
        )
    whole = classified.model_class is ModelClass.PREFIX_ONLY
    context = LlamaContext(
        model,
        # A whole state cannot be converted, so it is made in the types of the live context.
        replace(params, n_ctx=min(params.n_ctx, _padded(longest)))
        if whole
        else replace(
            params, type_k=GGMLType.F16, type_v=GGMLType.F16, n_ctx=_compile_n_ctx(longest, params.n_ctx, model)
        ),
        n_seq=2,
        abort=abort,
    )
    try:
        maker = _Maker(context, model, classified, converter, job, progress)
        meta = _meta(info, job, len(job.leads[-1]))
        if whole:
            meta = replace(meta, tokens=job.leads[0] + job.tokens, position_start=0)
            write_state_artifact(job.path, meta, maker.whole_state())
        else:
            write_artifact(job.path, meta, maker.rows())
    finally:
        context.close()
    return Compiled(
        path=job.path,
        n_tokens=len(meta.tokens),
        n_bytes=job.path.stat().st_size,
        decoded=maker.decoded,
        decode_seconds=maker.decode_seconds,
        seconds=time.perf_counter() - began,
    )


class _Maker:
    """Decodes a job's tokens behind its leads and takes the rows out."""

    def __init__(
        self,
        context: LlamaContext,
        model: LlamaModel,
        classified: Classified,
        converter: RowConverter,
        job: CompileJob,
        progress: Progress | None,
    ) -> None:
        self._context = context
        self._model = model
        self._classified = classified
        self._converter = converter
        self._job = job
        self._progress = progress
        self._total = sum(len(lead) + len(job.tokens) for lead in job.leads)
        self.decoded = 0
        self.decode_seconds = 0.0

    def whole_state(self) -> memoryview:
        self._decode(self._job.leads[0] + self._job.tokens)
        return self._context.get_state(0)

    def rows(self) -> StateRows:
        """Rows of the job's tokens at the positions that they have behind the last lead; F16, or Q8_0 as the job says."""
        assert self._classified.rotation is not None
        layout = read_live_layout(self._model, self._context, _SPARE, probe_token(self._model))
        transfer = RowsTransfer(
            self._context, layout, self._classified.rotation, _SPARE, self._model.n_swa, self._converter
        )
        target = len(self._job.leads[-1])
        versions: list[StateRows] = []
        for lead in self._job.leads:
            self._decode(lead + self._job.tokens)
            rows = transfer.read(0, len(lead), len(lead) + len(self._job.tokens))
            versions.append(transfer.moved(rows, target - len(lead), _without_hadamard(layout)))
            self._context.remove(0, -1)
        mean = average_rows(versions) if len(versions) > 1 else versions[0]
        return transfer.moved(mean, 0, _stored_layout(mean.layout, self._job.store))

    def _decode(self, tokens: Sequence[int]) -> None:
        done = self.decoded

        def advance(n_tokens: int) -> None:
            if self._progress is not None:
                self._progress(done + n_tokens, self._total)

        began = time.perf_counter()
        self._context.decode(0, tokens, 0, progress=advance)
        self.decode_seconds += time.perf_counter() - began
        self.decoded += len(tokens)


def _compile_n_ctx(longest: int, live: int, model: LlamaModel) -> int:
    """Small enough not to waste memory, and on the same side of the model's original context length as the live one: some
    models choose their frequencies by it (llama.cpp src/llama-model.cpp ``get_rope_factors``)."""
    return max(min(live, _padded(longest)), min(live, probing_n_ctx(model.pointer, live)))


def _padded(n_tokens: int) -> int:
    return -(-n_tokens // 256) * 256


def _without_hadamard(layout: StateLayout) -> StateLayout:
    return StateLayout(tuple(replace(cache, v_trans=False, k_hadamard=0, v_hadamard=0) for cache in layout.caches))


def _stored_layout(layout: StateLayout, store: StoreType) -> StateLayout:
    """Rows that are no whole number of Q8_0 blocks stay in F16."""

    def stored(tensor: TensorLayout) -> TensorLayout:
        quantize = store is StoreType.Q8_0 and tensor.n_embd % 32 == 0
        return TensorLayout(GGMLType.Q8_0 if quantize else GGMLType.F16, tensor.n_embd)

    def cache_of(cache: CacheLayout) -> CacheLayout:
        layers = tuple(
            replace(layer, k=stored(layer.k), v=None if layer.v is None else stored(layer.v)) for layer in cache.layers
        )
        return replace(cache, layers=layers)

    return StateLayout(tuple(cache_of(cache) for cache in layout.caches))


def _meta(info: ModelInfo, job: CompileJob, position_start: int) -> ArtifactMeta:
    return ArtifactMeta(
        skill=job.labels.skill,
        skill_sha256=job.labels.skill_sha256,
        model_fingerprint=info.fingerprint,
        model_name=info.name,
        model_arch=info.arch,
        tokens=job.tokens,
        position_start=position_start,
        lead=job.labels.lead,
        wrapper=job.labels.wrapper,
        rotation_fingerprint=info.rotation_fingerprint,
        store=job.store,
        llama_cpp_version=info.llama_cpp_version,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        fields=job.labels.fields,
    )
