"""The engine in a process of its own: llama.cpp may abort, the device may be lost, and the chats live on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.bounded_log import BoundedLog
from kvnotes_local.contract.compile_job import BatchCost, Compiled, CompileJob, CompileListener
from kvnotes_local.contract.generation import Generation, Sampling, StopReason, TokenEvent
from kvnotes_local.contract.model_info import ModelInfo
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.contract.plan import Applied, Graft, Part
from kvnotes_local.contract.protocol import LoadProgress, Parked, Progress, RowCheck
from kvnotes_local.engine.process.calls import (
    CALLBACKS,
    END_GENERATION,
    GENERATE,
    LOAD,
    NEXT_TOKEN,
    QUICK,
    GenerationStep,
    Loaded,
)
from kvnotes_local.engine.process.parent import EngineProcess, ProcessDied
from kvnotes_local.engine.process.supervision import Death, Limits, crash_error
from kvnotes_local.errors import Cancelled, EngineCrashed, EngineError, EngineLost

PROGRAM = (sys.executable, "-P", "-m", "kvnotes_local.engine.process.child")
_SEQUENCES_PER_EPOCH = 1 << 20


class ChildEngine:
    """Implements ``protocol.Engine`` as ``LlamaEngine`` does, with llama.cpp in another process. Takes the same arguments.

    When that process dies or gets stuck, the call that it was busy with raises EngineCrashed, and the next call starts it again.
    Sequences made before raise EngineLost from then on: their numbers are never given to others.

    ``limits``: when it counts as stuck. ``program``: what is started, for tests.
    """

    def __init__(
        self,
        model_path: Path | str,
        params: EngineParams | None = None,
        *,
        cache_dir: Path | None = None,
        log_path: Path | None = None,
        progress: LoadProgress | None = None,
        limits: Limits | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._model_path = Path(model_path).absolute()
        self._asked = params or EngineParams()
        self._cache_dir = None if cache_dir is None else Path(cache_dir).absolute()
        self._log = None if log_path is None else BoundedLog(log_path)
        self._limits = limits or Limits()
        self._program = program
        self._lock = threading.RLock()
        self._process: EngineProcess | None = None
        self._epoch = 0
        self._closed = False
        self._tokens: dict[int, tuple[int, ...]] = {}
        self._last_crash = ""
        self._lost = ""
        loaded = self._start(progress)
        self.info: ModelInfo = loaded.info
        self.params: EngineParams = loaded.params

    @property
    def pid(self) -> int | None:
        """Of the engine process; None while there is none."""
        process = self._process
        return process.pid if process is not None and process.is_alive else None

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        return cast(list[int], self._call("tokenize", text=text, special=special))

    def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> str:
        return cast(str, self._call("detokenize", tokens=_ints(tokens), special=special))

    def new_sequence(self) -> int:
        return self._given(self._call("new_sequence"))

    def free_sequence(self, seq: int) -> None:
        with suppress(EngineLost):  # what is gone is free
            self._change(seq, "free_sequence")

    def tokens(self, seq: int) -> tuple[int, ...]:
        with self._lock:
            number = self._number(seq)
            if seq not in self._tokens:
                self._tokens[seq] = cast(tuple[int, ...], self._call("tokens", seq=number))
            return self._tokens[seq]

    def apply(
        self,
        seq: int,
        parts: Sequence[Part],
        *,
        logits: bool = True,
        progress: Progress | None = None,
    ) -> Applied:
        theirs = [
            replace(part, source=self._number(part.source)) if isinstance(part, Graft) else part for part in parts
        ]
        how = {"parts": theirs, "logits": logits, "progress": progress}
        return cast(Applied, self._change(seq, "apply", **how))

    def check(self, seq: int) -> None:
        self._call("check", seq=self._number(seq))

    def fork(self, seq: int, length: int, *, for_undo: bool = False) -> int:
        with self._lock:
            return self._given(self._call("fork", seq=self._number(seq), length=length, for_undo=for_undo))

    def logits(self, seq: int) -> NDArray[np.float32]:
        return cast(NDArray[np.float32], self._call("logits", seq=self._number(seq)))

    def score(self, seq: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        return cast(NDArray[np.float32], self._change(seq, "score", tokens=_ints(tokens)))

    def generate(self, seq: int, sampling: Sampling, max_tokens: int) -> Generation:
        generation = Generation()
        number = self._call(GENERATE, seq=self._number(seq), sampling=sampling, max_tokens=max_tokens)
        generation.events = self._events(seq, number, generation)
        return generation

    def compile(self, job: CompileJob, *, progress: Progress | None = None) -> Compiled:
        return cast(Compiled, self._call("compile", job=job, progress=progress))

    def compile_many(self, jobs: Sequence[CompileJob], *, listen: CompileListener | None = None) -> BatchCost:
        return cast(BatchCost, self._call("compile_many", jobs=list(jobs), listen=listen))

    def check_artifact(self, path: Path, lead: Sequence[int], spans: Sequence[tuple[int, int]]) -> RowCheck:
        return cast(RowCheck, self._call("check_artifact", path=path, lead=_ints(lead), spans=list(spans)))

    def park(self, seq: int, key: str, *, on_disk: bool = False) -> Parked:
        return cast(Parked, self._change(seq, "park", key=key, on_disk=on_disk))

    def unpark(self, key: str) -> int | None:
        with self._lock:
            number = self._call("unpark", key=key)
            return None if number is None else self._given(number)

    def discard(self, key: str) -> None:
        self._call("discard", key=key)

    def cancel(self) -> None:
        process = self._process
        if process is not None:
            process.cancel()

    def close(self) -> None:
        # Without the lock: another thread may be waiting for an answer that will not come.
        self._closed = True
        process = self._process
        if process is not None:
            process.close()

    def __enter__(self) -> ChildEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _call(self, name: str, /, **arguments: Any) -> Any:
        """One call. The first one after a crash starts the process again."""
        process = self._process
        if name in QUICK and process is not None and process.is_alive:
            with suppress(EngineCrashed):  # whatever it died of, this call needs none of what is gone
                return self._ask(process, name, arguments)
        with self._lock:
            return self._ask(self._running(), name, arguments)

    def _change(self, seq: int, name: str, /, **arguments: Any) -> Any:
        """One call that may change what sequences hold: others may have to give way."""
        with self._lock:
            try:
                return self._call(name, seq=self._number(seq), **arguments)
            finally:
                self._tokens.clear()

    def _ask(self, process: EngineProcess, name: str, arguments: dict[str, Any]) -> Any:
        listens = next((key for key in arguments if key in CALLBACKS), None)
        callback = None if listens is None else arguments.pop(listens)
        try:
            value = process.call(name, arguments, None if callback is None else listens, callback)
        except ProcessDied:
            if self._closed:
                raise EngineError("The engine was closed.") from None
            death = process.death or Death("is gone")
            again = bool(self._last_crash)
            if name not in QUICK:
                self._last_crash = name
            error = crash_error(name, death, again=again, params=self._asked)
            process.epitaph = str(error)
            raise error from None
        succeeded = NEXT_TOKEN if name == END_GENERATION else name
        goes_on = name == NEXT_TOKEN and value.event is not None  # an answer is one operation, up to its end
        if succeeded == self._last_crash and not goes_on:
            self._last_crash = ""
        return value

    def _running(self) -> EngineProcess:
        if self._closed:
            raise EngineError("The engine was closed.")
        if self._process is None or not self._process.is_alive:
            loaded = self._start(None)
            if loaded.info != self.info:
                self.close()
                raise EngineError(f"{self._model_path} is not the model that it was. Start kvnotes again.")
            assert self._process is not None
        return self._process

    def _start(self, progress: LoadProgress | None) -> Loaded:
        self._lost = self._why_lost()
        process = self._process = EngineProcess(self._program, self._limits, self._log)
        self._epoch += 1
        self._tokens.clear()

        def report(done: int, total: int) -> None:
            if progress is not None and not progress(done / total):
                raise Cancelled(f"Loading {self._model_path.name} was cancelled.")

        cache = None if self._cache_dir is None else str(self._cache_dir)
        how = {"model_path": str(self._model_path), "params": self._asked, "cache_dir": cache, "progress": report}
        try:
            return cast(Loaded, self._ask(process, LOAD, how))
        except BaseException:
            process.close()
            raise

    def _events(self, seq: int, number: int, generation: Generation) -> Generator[TokenEvent, None, None]:
        done = False
        try:
            while True:
                step = self._take(seq, NEXT_TOKEN, number, generation)
                if step.event is None:
                    done = True
                    return
                yield step.event
        except EngineLost:
            done = True
            raise
        finally:
            if not done and not self._closed:
                with suppress(EngineLost):
                    self._take(seq, END_GENERATION, number, generation)
                generation.stop_reason = generation.stop_reason or StopReason.STOPPED

    def _take(self, seq: int, name: str, number: int, generation: Generation) -> GenerationStep:
        with self._lock:
            self._number(seq)
            try:
                step = cast(GenerationStep, self._call(name, generation=number))
            finally:
                self._tokens.clear()
        generation.tokens.extend(step.tokens)
        generation.n_cached, generation.seconds = step.n_cached, step.seconds
        generation.stop_reason, generation.end_token = step.stop_reason, step.end_token
        return step

    def _given(self, number: int) -> int:
        self._tokens.clear()  # others may have had to give way
        return self._epoch * _SEQUENCES_PER_EPOCH + number

    def _number(self, seq: int) -> int:
        """The process's own number of a sequence. Raises EngineLost for one of an earlier process."""
        epoch, number = divmod(seq, _SEQUENCES_PER_EPOCH)
        process = self._process
        if epoch != self._epoch or process is None or not process.is_alive:
            if self._closed:
                raise EngineError("The engine was closed.")
            raise EngineLost(self._why_lost())
        return number

    def _why_lost(self) -> str:
        """How the last process that died did so."""
        death = self._process.death if self._process is not None else None
        if self._process is None or death is None:
            return self._lost
        return self._process.epitaph or f"The engine process {death.cause}."


def _ints(tokens: Sequence[int]) -> list[int]:
    return [int(token) for token in tokens]
