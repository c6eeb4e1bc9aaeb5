"""Computes the rows of artifacts: the tokens of each job behind its leads, in one F16 context for the whole batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from kvnotes_local.artifacts.artifact import ArtifactMeta, StoreType
from kvnotes_local.artifacts.writer import write_artifact, write_state_artifact
from kvnotes_local.contract.compile_job import (
    BatchCost,
    Compiled,
    CompileJob,
    CompileListener,
    JobDone,
    JobFailed,
    JobProgress,
    JobSkipped,
    too_long,
)
from kvnotes_local.contract.model_info import ModelClass, ModelInfo
from kvnotes_local.contract.params import EngineParams, padded_n_ctx
from kvnotes_local.engine.compiling.lead_prefill import LeadPrefill
from kvnotes_local.engine.compiling.packs import NumberedJob, Pack, cells_needed, pack_jobs
from kvnotes_local.engine.llama.context import AbortFlag, LlamaContext
from kvnotes_local.engine.llama.model import LlamaModel
from kvnotes_local.engine.rotation.hints import probing_n_ctx
from kvnotes_local.engine.rotation.model_class import Classified
from kvnotes_local.errors import ArtifactError, Cancelled, DiskFullError, KvnotesError
from kvnotes_local.kv.converter import RowConverter
from kvnotes_local.kv.layout import GGMLType, StateLayout, TensorLayout
from kvnotes_local.kv.rows import average_rows

_SAMPLE_SHARE = 0.06
"""How much of a batch is decoded a second time to know llama.cpp's own speed."""


class ArtifactCompiler:
    """Makes the artifacts of one batch of jobs; ``listen`` hears how each goes."""

    def __init__(
        self,
        model: LlamaModel,
        info: ModelInfo,
        classified: Classified,
        params: EngineParams,
        converter: RowConverter,
        abort: AbortFlag,
        listen: CompileListener,
    ) -> None:
        self._model = model
        self._info = info
        self._classified = classified
        self._params = params
        self._converter = converter
        self._abort = abort
        self._listen = listen

    def run(self, jobs: Sequence[CompileJob]) -> BatchCost:
        """See ``Engine.compile_many``."""
        began = time.perf_counter()
        wanted = self._possible(jobs)
        if not wanted:
            return BatchCost()
        whole = self._classified.model_class is ModelClass.PREFIX_ONLY
        packs = [(one,) for one in wanted] if whole else pack_jobs(wanted, self._params.n_ubatch)
        context = LlamaContext(
            self._model, self._context_params(packs, whole), n_seq=2 if whole else 16, abort=self._abort
        )
        try:
            prefill = LeadPrefill(context, self._model, self._classified, self._converter, whole=whole)
            rest = sum(one.n_decoded for one in wanted)
            for pack in packs:
                leads = prefill.lead_seconds
                here = tuple(one for one in pack if not self._skip(one))
                rest -= sum(one.n_decoded for one in pack)
                if here and self._make(prefill, here) and not whole:
                    self._sample(prefill, here, rest, prefill.lead_seconds - leads)
        finally:
            context.close()
        cost = prefill.cost
        return replace(cost, seconds=time.perf_counter() - began - cost.sample_plain_seconds)

    def _possible(self, jobs: Sequence[CompileJob]) -> list[NumberedJob]:
        possible = []
        for number, job in enumerate(jobs):
            error = too_long(job, self._info.n_ctx)
            if self._classified.model_class is ModelClass.PREFILL:
                error = ArtifactError(f"{self._info.name} cannot use artifacts: {self._classified.reason}")
            if error is None:
                possible.append(NumberedJob(number, job))
            else:
                self._listen(JobFailed(number, error))
        return possible

    def _context_params(self, packs: Sequence[Pack], whole: bool) -> EngineParams:
        n_cells = cells_needed(packs)
        live = self._params.n_ctx
        if whole:
            # A whole state cannot be converted, so it is made in the types of the live context.
            return replace(self._params, n_ctx=min(live, padded_n_ctx(n_cells)))
        # Some models choose their frequencies by the size of the context (llama.cpp src/llama-model.cpp
        # ``get_rope_factors``), so this one has to be on the same side of the original length as the live one.
        side = probing_n_ctx(self._model, live)
        n_ctx = max(padded_n_ctx(n_cells), min(live, side))
        if probing_n_ctx(self._model, n_ctx) != side:
            n_ctx = live
        return replace(self._params, type_k=GGMLType.F16, type_v=GGMLType.F16, n_ctx=n_ctx)

    def _skip(self, one: NumberedJob) -> bool:
        if not (one.job.keep_existing and one.job.path.exists()):
            return False
        self._listen(JobSkipped(one.number))
        return True

    def _make(self, prefill: LeadPrefill, pack: Pack) -> bool:
        """Make the artifacts of jobs that are decoded together; whether all of them were made."""
        self._pack_began, n_made = time.perf_counter(), 0
        decoding = prefill.cost.decode_seconds
        reported = {one.number: 0 for one in pack}

        def advance(number: int, done: int) -> None:
            total = len(next(one for one in pack if one.number == number).job.tokens)
            if done > reported[number]:
                reported[number] = done
                self._listen(JobProgress(number, done, total))

        try:
            prefill.read(pack, advance)
        except Cancelled:
            raise
        except KvnotesError as error:
            if len(pack) == 1:
                self._listen(JobFailed(pack[0].number, error))
                return False
            for one in pack:  # one of them may be at fault, so each gets a try of its own
                self._make(prefill, (one,))
            return False
        decoding = prefill.cost.decode_seconds - decoding
        n_decoded = sum(one.n_decoded for one in pack)
        for one in pack:
            began = time.perf_counter()
            try:
                n_tokens = self._write(prefill, one)
            except DiskFullError as error:
                self._listen(JobFailed(one.number, error))
                raise
            except KvnotesError as error:
                self._listen(JobFailed(one.number, error))
                continue
            finally:
                prefill.drop(one)
            share = decoding * one.n_decoded / n_decoded
            compiled = Compiled(
                path=one.job.path,
                n_tokens=n_tokens,
                n_bytes=one.job.path.stat().st_size,
                decoded=one.n_decoded,
                decode_seconds=share,
                seconds=share + time.perf_counter() - began,
            )
            n_made += 1
            self._listen(JobDone(one.number, compiled))
        return n_made == len(pack)

    def _write(self, prefill: LeadPrefill, one: NumberedJob) -> int:
        job = one.job
        meta = _meta(self._info, job, len(job.leads[-1]))
        if prefill.whole:
            meta = replace(meta, tokens=job.leads[0] + job.tokens, position_start=0)
            write_state_artifact(job.path, meta, prefill.state(one))
        else:
            versions = prefill.rows(one)
            mean = average_rows(versions, self._converter) if len(versions) > 1 else versions[0]
            write_artifact(job.path, meta, prefill.stored(mean, _stored_layout(mean.layout, job.store)))
        return len(meta.tokens)

    def _sample(self, prefill: LeadPrefill, pack: Pack, rest: int, lead_seconds: float) -> None:
        """Decode a pack again now and then, while there is enough to do for it to be worth it."""
        cost = prefill.cost
        seconds = time.perf_counter() - self._pack_began - lead_seconds
        n_tokens = len(pack[0].job.tokens) if len(pack) == 1 else sum(one.n_decoded for one in pack)
        worth_it = n_tokens >= self._params.n_ubatch // 2  # fewer would mostly time the clock
        if worth_it and cost.sample_tokens + n_tokens <= _SAMPLE_SHARE * (cost.decoded + rest):
            prefill.sample(pack, seconds)


def _stored_layout(layout: StateLayout, store: StoreType) -> StateLayout:
    """Rows that are no whole number of Q8_0 blocks stay in F16."""

    def stored(tensor: TensorLayout) -> GGMLType:
        return GGMLType.Q8_0 if store is StoreType.Q8_0 and tensor.n_embd % 32 == 0 else GGMLType.F16

    return layout.with_types(stored)


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
