"""The engine in this process: a model, a context with several sequences, and what moves rows between them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.artifacts.artifact import Artifact, open_artifact
from kvnotes_local.contract.compile_job import (
    BatchCost,
    Compiled,
    CompileEvent,
    CompileJob,
    CompileListener,
    JobDone,
    JobFailed,
    JobProgress,
)
from kvnotes_local.contract.generation import Generation, Sampling
from kvnotes_local.contract.model_info import ModelClass
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.contract.plan import Applied, Graft, Part
from kvnotes_local.contract.protocol import LoadProgress, Parked, Progress, RowCheck
from kvnotes_local.engine.compiling.artifact_check import check_rows_of
from kvnotes_local.engine.compiling.artifact_compiler import ArtifactCompiler
from kvnotes_local.engine.format_memory import chat_format_of
from kvnotes_local.engine.llama import native
from kvnotes_local.engine.llama.checkpoints import end_where_known, go_back
from kvnotes_local.engine.llama.context import LlamaContext
from kvnotes_local.engine.llama.ggml_converter import GGMLConverter
from kvnotes_local.engine.llama.model import LlamaModel
from kvnotes_local.engine.model_description import completed, describe, state_format
from kvnotes_local.engine.rotation.model_class import classify
from kvnotes_local.engine.sequences.builder import SequenceBuilder, SequenceState
from kvnotes_local.engine.sequences.pool import Sequences
from kvnotes_local.engine.sequences.rows_transfer import RowsTransfer
from kvnotes_local.engine.sequences.saved_state import load_state, save_state
from kvnotes_local.engine.sequences.state_shelf import StateShelf, states_directory
from kvnotes_local.engine.sequences.token_drawing import draw_tokens
from kvnotes_local.errors import EngineError
from kvnotes_local.kv.layout import StateLayout
from kvnotes_local.kv.rotation import ModelRotation
from kvnotes_local.kv.state import parse_state, write_state
from kvnotes_local.models.fingerprint import model_fingerprint
from kvnotes_local.models.memory import check_memory


class LlamaEngine:
    """A loaded model with one context; implements ``protocol.Engine``. Thread-safe: one call at a time, cancel any time.

    >>> engine = LlamaEngine(Path("model.gguf"))
    >>> seq = engine.new_sequence()
    >>> engine.apply(seq, [Decode(tuple(engine.tokenize("Once upon a time")))])
    >>> for event in engine.generate(seq, Sampling(), max_tokens=32):
    ...     print(event.text)

    ``cache_dir`` remembers fingerprints and measured rotations between runs. Raises ModelError (also for too little memory),
    EngineError.
    """

    def __init__(
        self,
        model_path: Path | str,
        params: EngineParams | None = None,
        *,
        cache_dir: Path | None = None,
        log_path: Path | None = None,
        progress: LoadProgress | None = None,
    ) -> None:
        native.start(log_path)
        path = Path(model_path)
        params = params or EngineParams()
        self._lock = threading.RLock()
        self._model = LlamaModel(
            path, n_gpu_layers=params.n_gpu_layers, extra_buffers=params.extra_buffers, progress=progress
        )
        self.params = completed(params, self._model)
        check_memory(
            self._model.header,
            self.params.n_ctx,
            self.params.type_k,
            self.params.type_v,
            self.params.n_gpu_layers,
            has_gpu=native.supports_gpu(),
        )
        fingerprint = model_fingerprint(path, cache_dir)
        n_seq = self.params.n_sequences
        self._context = LlamaContext(self._model, self.params, n_seq=n_seq)
        self._spare, stage = n_seq - 1, n_seq - 2
        self._converter = GGMLConverter()
        self._classified = classify(self._model, self._context, self._spare, fingerprint, cache_dir)
        self._transfer = RowsTransfer(
            self._context,
            self._classified.layout,
            self._classified.rotation,
            self._spare,
            self._model.n_swa,
            self._converter,
        )
        self._builder = SequenceBuilder(
            self._context, self._transfer, self._classified.model_class, stage, self._open_artifact
        )
        self._state_format = state_format(self.params, self._classified.layout)
        chat_format = chat_format_of(self._model, fingerprint, cache_dir)
        ends = (self._model.tokenize(marker, special=True) for marker in chat_format.end_markers)
        self._ends = frozenset(tokens[0] for tokens in ends if len(tokens) == 1)
        self.info = describe(
            self._model,
            self.params,
            self._context.n_ctx,
            fingerprint,
            self._classified,
            chat_format,
            self._state_format,
        )
        self._shelf = StateShelf(
            self._save_state,
            self._load_state,
            states_directory(cache_dir) if cache_dir is not None else None,
        )
        self._sequences = Sequences(self._context, self._shelf, self._whole_state, stage)

    @property
    def layout(self) -> StateLayout:
        """How the live cache is laid out. Raises EngineError for a model whose cache is not understood."""
        if self._classified.layout is None:
            raise EngineError(f"The cache of {self.info.name} is not understood: {self._classified.reason}")
        return self._classified.layout

    @property
    def rotation(self) -> ModelRotation:
        """How the keys rotate, as measured. Raises EngineError for a model whose keys are no rotation."""
        if self._classified.rotation is None:
            raise EngineError(f"The keys of {self.info.name} cannot be moved: {self._classified.reason}")
        return self._classified.rotation

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        return self._model.tokenize(text, special=special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> str:
        return self._model.detokenize(tokens)

    def new_sequence(self) -> int:
        with self._lock:
            return self._sequences.new()

    def free_sequence(self, seq: int) -> None:
        with self._lock:
            self._sequences.free(seq)

    def tokens(self, seq: int) -> tuple[int, ...]:
        with self._lock:
            return self._sequences.tokens(seq)

    def apply(
        self,
        seq: int,
        parts: Sequence[Part],
        *,
        logits: bool = True,
        progress: Progress | None = None,
    ) -> Applied:
        with self._lock:
            self._context.abort.clear()
            numbers = [part.source for part in parts if isinstance(part, Graft)]
            with self._sequences.at_work(seq, *numbers) as (state, *sources):
                named = dict(zip(numbers, sources, strict=True))
                return self._builder.apply(state, parts, named, logits=logits, progress=progress)

    def check(self, seq: int) -> None:
        with self._lock, self._sequences.at_work(seq) as (state,):
            n = len(state.tokens)
            first, last = self._context.first_position(state.id), self._context.last_position(state.id)
            if n and self._classified.layout is not None:
                blob = self._context.get_state(state.id)
                cells = parse_state(blob, self._classified.layout).caches[0].pos
                if not np.array_equal(cells, np.arange(n)):
                    raise EngineError(f"Sequence {seq} has {cells.size:,} cells for {n:,} tokens, or at other places.")
            elif last != n - 1 or (n and first > last):
                raise EngineError(f"Sequence {seq} ends at position {last:,}, but holds {n:,} tokens.")

    def fork(self, seq: int, length: int, *, for_undo: bool = False) -> int:
        with self._lock, self._sequences.at_work(seq) as (source,):
            if not 0 <= length <= len(source.tokens):
                raise EngineError(f"A fork of {length:,} tokens was asked of a sequence of {len(source.tokens):,}.")
            target = self._sequences.new(for_undo=for_undo)
            try:
                with self._sequences.at_work(target) as (twin,):
                    self._share(source, twin, length)
            except BaseException:
                self._sequences.free(target)
                raise
            return target

    def _share(self, source: SequenceState, twin: SequenceState, length: int) -> None:
        if self.info.model_class is ModelClass.PREFIX_ONLY and length < len(source.tokens):
            checkpoint = source.checkpoints.nearest(length)
            if checkpoint is None:
                return
            self._context.copy(source.id, twin.id)
            go_back(self._context, twin.id, checkpoint)
            length = checkpoint.n_tokens
        else:
            self._context.copy(source.id, twin.id, 0, length)
        twin.tokens = source.tokens[:length]
        twin.checkpoints = source.checkpoints.copy()
        twin.checkpoints.cut(length)

    def logits(self, seq: int) -> NDArray[np.float32]:
        with self._lock:
            return self._context.last_logits()

    def score(self, seq: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        with self._lock, self._sequences.at_work(seq) as (state,):
            self._context.abort.clear()
            rows = np.empty((len(tokens), self._model.n_vocab), np.float32)
            try:
                self._context.decode(state.id, tokens, len(state.tokens), all_logits=rows)
            except BaseException:
                end_where_known(self._context, state.id, state.tokens, state.checkpoints)
                raise
            state.tokens.extend(tokens)
            return rows

    def generate(self, seq: int, sampling: Sampling, max_tokens: int) -> Generation:
        generation = Generation()
        generation.events = draw_tokens(
            generation, self._model, self._context, self._sequences, seq, self._lock, sampling, max_tokens, self._ends
        )
        return generation

    def compile(self, job: CompileJob, *, progress: Progress | None = None) -> Compiled:
        ends: list[CompileEvent] = []

        def listen(event: CompileEvent) -> None:
            if not isinstance(event, JobProgress):
                ends.append(event)
            elif progress is not None:
                progress(event.done, event.total)

        self.compile_many([replace(job, keep_existing=False)], listen=listen)
        end = ends[0]
        if isinstance(end, JobFailed):
            raise end.error
        assert isinstance(end, JobDone)
        return end.compiled

    def compile_many(self, jobs: Sequence[CompileJob], *, listen: CompileListener | None = None) -> BatchCost:
        with self._lock:
            self._context.abort.clear()
            compiler = ArtifactCompiler(
                self._model,
                self.info,
                self._classified,
                self.params,
                self._converter,
                self._context.abort,
                listen or (lambda event: None),
            )
            return compiler.run(jobs)

    def check_artifact(self, path: Path, lead: Sequence[int], spans: Sequence[tuple[int, int]]) -> RowCheck:
        with self._lock:
            self._context.abort.clear()
            with open_artifact(
                path, model_fingerprint=self.info.fingerprint, layout=self._classified.layout
            ) as artifact:
                return check_rows_of(
                    artifact,
                    self._model,
                    self._classified,
                    self.params,
                    self._converter,
                    self._context.abort,
                    lead,
                    spans,
                )

    def park(self, seq: int, key: str, *, on_disk: bool = False) -> Parked:
        with self._lock:
            try:
                shelved = self._sequences.shelved(seq)
            finally:
                self._sequences.free(seq)
            parked = Parked(False)
            if shelved.tokens:
                parked = self._shelf.keep(key, shelved) if on_disk else self._shelf.put(key, shelved)
            before, self._sequences.forgotten = self._sequences.forgotten, 0
            return replace(parked, forgotten=parked.forgotten + before)

    def unpark(self, key: str) -> int | None:
        with self._lock:
            shelved = self._shelf.take(key)
            if shelved is None:
                return None
            seq = self._sequences.new()
            with self._sequences.at_work(seq) as (state,):
                try:
                    self._context.set_state(state.id, shelved.blob)
                except EngineError:
                    self._sequences.free(seq)
                    return None  # no room for it: the chat is read as far as it fits
                state.tokens = list(shelved.tokens)
            return seq

    def discard(self, key: str) -> None:
        self._shelf.discard(key)

    def cancel(self) -> None:
        self._context.abort.set()

    def close(self) -> None:
        with self._lock:
            self._sequences.close()
            self._context.close()
            self._model.close()

    def __enter__(self) -> LlamaEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _whole_state(self, state: SequenceState) -> memoryview:
        layout = self._classified.layout
        if layout is None or not self._model.n_swa:
            return self._context.get_state(state.id)
        # llama.cpp would leave out what the sliding window masks, and the chat could not be cut later.
        return write_state(self._transfer.read(state.id, 0, len(state.tokens)))

    def _save_state(self, path: Path, tokens: tuple[int, ...], blob: memoryview) -> int:
        return save_state(path, self.info, self._state_format, tokens, blob)

    def _load_state(self, path: Path) -> tuple[tuple[int, ...], memoryview]:
        return load_state(path, self.info, self._state_format, self._classified.layout, self._context.n_ctx)

    def _open_artifact(self, path: Path) -> Artifact:
        return open_artifact(
            path,
            model_fingerprint=self.info.fingerprint,
            rotation=self.info.rotation_fingerprint,
            layout=self._classified.layout,
            llama_cpp_version=self.info.llama_cpp_version,
        )
