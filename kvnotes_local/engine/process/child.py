"""The engine process: ``python -m kvnotes_local.engine.process.child PARENT_PID``. It reads calls from stdin, answers on stdout,
logs to stderr, and ends when stdin does.

Three threads: the main one carries out calls, one after the other; one reads, so that a cancel or the parent's end is noticed
while llama.cpp computes; one tells every half second that all is well.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from kvnotes_local.contract.generation import Generation, Sampling, TokenEvent
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama import native
from kvnotes_local.engine.llama.pulse import PULSE
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.engine.process.calls import (
    CALLS,
    END_GENERATION,
    GENERATE,
    LOAD,
    NEXT_TOKEN,
    QUICK,
    GenerationStep,
    Loaded,
)
from kvnotes_local.engine.process.messages import (
    PROTOCOL_VERSION,
    Beat,
    Call,
    Cancel,
    Failure,
    Frame,
    FrameReader,
    FrameWriter,
    Hello,
    Message,
    Report,
    Result,
)
from kvnotes_local.errors import Cancelled, EngineError, KvnotesError

BEAT_SECONDS = 0.5


class EngineServer:
    """Carries out the calls that come over a pipe. ``serve`` returns when they end."""

    def __init__(self, reader: FrameReader, writer: FrameWriter, *, ended: Callable[[], None]) -> None:
        self._reader = reader
        self._writer = writer
        self._ended = ended
        self._calls: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._engine: LlamaEngine | None = None
        self._generations: dict[int, _Streamed] = {}
        self._numbers = count(1)
        # Which call runs, and up to which they are cancelled; read by all three threads.
        self._state = threading.Lock()
        self._running: int | None = None
        self._cancelled = 0

    def serve(self) -> None:
        self._send(Hello(PROTOCOL_VERSION, os.getpid()))
        for work in (self._read, self._beat):
            threading.Thread(target=work, daemon=True).start()
        while True:
            frame = self._calls.get()
            assert isinstance(frame.message, Call)
            self._answer(frame, frame.message)

    # -- the reading thread --------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while (frame := self._reader.read()) is not None:
                if isinstance(frame.message, Cancel):
                    self._cancel(frame.message.id)
                elif isinstance(frame.message, Call) and frame.message.name in QUICK and self._engine is not None:
                    self._answer(frame, frame.message)
                elif isinstance(frame.message, Call):
                    self._calls.put(frame)
        except BaseException:
            traceback.print_exc()
        finally:
            self._ended()  # the parent is gone, or talks nonsense; whatever runs is of use to nobody

    def _cancel(self, up_to: int) -> None:
        with self._state:
            self._cancelled = max(self._cancelled, up_to)
            if self._engine is not None and (self._running is None or self._running <= up_to):
                self._engine.cancel()

    def _beat(self) -> None:
        while True:
            reading = PULSE.read()
            self._send(Beat(reading.steps, reading.seconds, reading.allowed))
            with self._state:
                # The engine forgets a cancel that came just before its call began.
                if self._engine is not None and self._running is not None and self._running <= self._cancelled:
                    self._engine.cancel()
            _pause.wait(BEAT_SECONDS)

    # -- the working thread --------------------------------------------------------------------------------------------

    def _answer(self, frame: Frame, call: Call) -> None:
        try:
            with self._as_running(call):
                value = self._perform(frame, call)
            self._send(Result(call.id), value)
        except KvnotesError as error:
            self._send(Failure(call.id), error)
        except Exception as error:
            traceback.print_exc()
            self._send(Failure(call.id), EngineError(f"The engine failed: {type(error).__name__}: {error}"))

    @contextmanager
    def _as_running(self, call: Call) -> Iterator[None]:
        if call.name in QUICK:
            yield
            return
        with self._state:
            if call.id <= self._cancelled and call.name not in {NEXT_TOKEN, END_GENERATION}:
                raise Cancelled("Stopped.")
            self._running = call.id
        try:
            yield
        finally:
            with self._state:
                self._running = None

    def _perform(self, frame: Frame, call: Call) -> Any:
        if call.name not in CALLS:
            raise EngineError(f"There is no call {call.name!r}.")
        arguments = CALLS[call.name].read_arguments(frame.payload, frame.raw)
        report = _Reporter(self._send, call.id)
        if call.name == LOAD:
            return self._load(report, **arguments)
        engine = self._engine
        if engine is None:
            raise EngineError("No model is loaded.")
        if call.name == GENERATE:
            number = next(self._numbers)
            self._generations[number] = _Streamed(engine, **arguments)
            return number
        if call.name in {NEXT_TOKEN, END_GENERATION}:
            return self._step(call.name, **arguments)
        if call.listens is not None:
            arguments[call.listens] = report
        return getattr(engine, call.name)(**arguments)

    def _load(
        self, report: _Reporter, *, model_path: str, params: EngineParams, cache_dir: str | None = None
    ) -> Loaded:
        def progress(fraction: float) -> bool:
            report(int(fraction * 1000), 1000)
            with self._state:
                return self._running is None or self._running > self._cancelled

        engine = LlamaEngine(
            Path(model_path), params, cache_dir=None if cache_dir is None else Path(cache_dir), progress=progress
        )
        with self._state:
            self._engine = engine
        return Loaded(engine.info, engine.params)

    def _step(self, name: str, *, generation: int) -> GenerationStep:
        streamed = self._generations.get(generation)
        if streamed is None:
            raise EngineError(f"There is no generation {generation}.")
        step = streamed.next() if name == NEXT_TOKEN else streamed.end()
        if step.event is None:
            del self._generations[generation]
        return step

    def _send(self, message: Message, payload: Any = None) -> None:
        with suppress(OSError):  # the parent is gone; the reading thread ends this process
            self._writer.write(message, payload)


class _Streamed:
    """A generation that the other side takes token by token."""

    def __init__(self, engine: LlamaEngine, seq: int, sampling: Sampling, max_tokens: int) -> None:
        self._generation: Generation = engine.generate(seq, sampling, max_tokens)
        self._told = 0

    def next(self) -> GenerationStep:
        events: Generator[TokenEvent, None, None] | None = self._generation.events
        return self._step(None if events is None else next(events, None))

    def end(self) -> GenerationStep:
        self._generation.close()
        return self._step(None)

    def _step(self, event: TokenEvent | None) -> GenerationStep:
        one = self._generation
        new, self._told = tuple(one.tokens[self._told :]), len(one.tokens)
        return GenerationStep(event, new, one.n_cached, one.stop_reason, one.seconds, one.end_token)


class _Reporter:
    """A callback whose calls become messages; one that says the same as the one before is left out."""

    def __init__(self, send: Callable[[Message, Any], None], call: int) -> None:
        self._send = send
        self._call = call
        self._last: Any = None

    def __call__(self, *said: Any) -> None:
        if said != self._last:
            self._last = said
            self._send(Report(self._call), said if len(said) > 1 else said[0])


_pause = threading.Event()


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, where it can (Linux). The end of stdin does it everywhere, but
    needs this process to run."""
    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)  # it ended while this one began


def _own_pipes() -> tuple[BinaryIO, BinaryIO]:
    """stdin and stdout as they came; from now on whatever is printed goes to stderr, and nobody else reads stdin."""
    calls, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(calls, "rb", buffering=0), os.fdopen(answers, "wb")


def main() -> None:
    """Serve until the parent closes the pipe."""
    with suppress(ValueError, OSError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    die_with_parent(int(sys.argv[1]))
    faulthandler.enable(all_threads=False)
    calls, answers = _own_pipes()
    native.log_to_stderr()
    # No clean-up: another thread may be inside llama.cpp, and all that matters is on disk.
    EngineServer(FrameReader(calls), FrameWriter(answers), ended=lambda: os._exit(0)).serve()


if __name__ == "__main__":
    main()
