"""One engine process seen from outside: started, talked to, watched, and told how it ended."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, BinaryIO, cast

from kvnotes_local.bounded_log import BoundedLog
from kvnotes_local.engine.process.calls import CALLBACKS, CALLS
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
    Report,
    Result,
)
from kvnotes_local.engine.process.supervision import Death, Limits, exit_cause
from kvnotes_local.engine.process.wire import WireError, from_wire
from kvnotes_local.errors import EngineError, Interrupted, KvnotesError

Callback = Callable[..., None]

LOG_LINES = 40
CLOSE_SECONDS = 5.0


class ProcessDied(Exception):
    """The process ended before it answered; ``EngineProcess.death`` says how."""


class EngineProcess:
    """Starts ``command`` and waits until it speaks. Raises EngineError when it does not.

    Calls may come from any thread. The process ends with this one: its stdin ends then, and on Linux the kernel kills it, which
    happens when the *thread* that started it ends; therefore the reading thread does that, which lives as long as the process.
    """

    def __init__(self, command: Sequence[str], limits: Limits, log: BoundedLog | None) -> None:
        self._command = command
        self._limits = limits
        self._log = log
        self._ids = count(1)
        self._last_id = 0
        self._lock = threading.Lock()
        self._answers: dict[int, queue.SimpleQueue[Frame | None]] = {}
        self._started: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()
        self._said_hello = threading.Event()
        self._ended = threading.Event()
        self._lines: deque[str] = deque(maxlen=LOG_LINES)
        self._beat: Beat | None = None
        self._verdict = ""
        self.death: Death | None = None
        self.epitaph = ""  # what the caller whose call it was made of its death
        self._reader = threading.Thread(target=self._run, name="kvnotes engine reader", daemon=True)
        self._reader.start()
        failed = self._started.get()
        if failed is not None:
            raise EngineError(f"The engine process cannot be started: {failed}.")
        threading.Thread(target=self._watch, name="kvnotes engine watch", daemon=True).start()
        if not self._said_hello.wait(limits.start_seconds) or self.death is not None:
            self.kill("did not speak")
            self._ended.wait(CLOSE_SECONDS)
            said = " ".join(list(self._lines)[-1:])
            raise EngineError(f"The engine process did not start. {said} `kvnotes doctor` says what this build can do.")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self.death is None

    def call(
        self, name: str, arguments: Mapping[str, Any], listens: str | None = None, callback: Callback | None = None
    ) -> Any:
        """The value of a call. Raises what the call raised, or ProcessDied.

        ``callback`` gets, in this thread, what the call's argument ``listens`` is told. What it raises cancels the call, and is
        raised when that has ended.
        """
        answers: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        with self._lock:
            if self.death is not None:
                raise ProcessDied
            number = next(self._ids)
            self._answers[number] = answers
            self._last_id = number
        interrupted: BaseException | None = None
        try:
            try:
                self._writer.write(Call(number, name, listens), list(arguments.items()))
            except (OSError, ValueError):  # it has ended, or its pipe is closed
                self._ended.wait(CLOSE_SECONDS)
                raise ProcessDied from None
            while True:
                frame = answers.get()
                if frame is None:
                    raise interrupted or ProcessDied
                message = frame.message
                if isinstance(message, Report):
                    if listens is not None and callback is not None and interrupted is None:
                        said = from_wire(CALLBACKS[listens], frame.payload, frame.raw)
                        try:
                            callback(*said) if isinstance(said, tuple) else callback(said)
                        except Exception as error:
                            interrupted = error
                            self.cancel()
                    continue
                if interrupted is not None:
                    raise interrupted
                if isinstance(message, Failure):
                    raise from_wire(KvnotesError, frame.payload, frame.raw)
                return from_wire(CALLS[name].returns, frame.payload, frame.raw)
        except WireError as error:
            self.kill(f"spoke in a way that is not understood ({error})")
            raise ProcessDied from error
        except (KeyboardInterrupt, Interrupted):
            self.cancel()
            raise
        finally:
            with self._lock:
                self._answers.pop(number, None)

    def cancel(self) -> None:
        """Stop what was asked for so far; from any thread."""
        with suppress(OSError, ValueError):  # it has ended, or its pipe is closed
            self._writer.write(Cancel(self._last_id))

    def kill(self, verdict: str) -> None:
        """End it at once; ``verdict`` says why."""
        if self.death is None and not self._verdict:
            self._verdict = verdict
        with suppress(OSError):
            self._process.kill()

    def close(self) -> None:
        """End it in good order: it does nothing more once its stdin ends."""
        with suppress(OSError):
            self._stdin.close()
        if not self._ended.wait(CLOSE_SECONDS):
            self.kill("did not end by itself")
            self._ended.wait(CLOSE_SECONDS)

    # -- the reading thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._process = _start(self._command)
        except OSError as error:
            self._started.put(error)
            return
        self._stdin = cast(BinaryIO, self._process.stdin)
        self._writer = FrameWriter(self._stdin)
        self._started.put(None)
        pump = threading.Thread(target=self._pump, name="kvnotes engine log", daemon=True)
        pump.start()
        try:
            self._read(FrameReader(cast(BinaryIO, self._process.stdout)))
        except WireError as error:
            self.kill(f"spoke in a way that is not understood ({error})")
        try:
            code = self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:  # it closed its end, but lives
            self.kill("closed the pipe")
            code = self._process.wait()
        pump.join(CLOSE_SECONDS)
        with self._lock:
            self.death = Death(self._verdict or exit_cause(code), tuple(self._lines))
            waiting = list(self._answers.values())
        self._ended.set()
        self._said_hello.set()
        for answers in waiting:
            answers.put(None)
        with suppress(OSError):
            self._stdin.close()

    def _read(self, reader: FrameReader) -> None:
        while (frame := reader.read()) is not None:
            message = frame.message
            if isinstance(message, Beat):
                self._beat = message
            elif isinstance(message, (Result, Failure, Report)):
                with self._lock:
                    answers = self._answers.get(message.id)
                if answers is not None:  # else nobody waits for it any more
                    answers.put(frame)
            elif isinstance(message, Hello):
                if message.version != PROTOCOL_VERSION:
                    raise WireError(f"protocol {message.version} instead of {PROTOCOL_VERSION}")
                self._said_hello.set()
            else:
                raise WireError(f"{type(message).__name__} came from the wrong side")

    def _pump(self) -> None:
        """What the process says on stderr: to the log, and the last lines kept."""
        with cast(BinaryIO, self._process.stderr) as stderr:
            rest = b""
            while data := os.read(stderr.fileno(), 1 << 16):
                if self._log is not None:
                    self._log.write(data)
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[-4096:]
                self._lines.extend(line.decode("utf-8", "replace") for line in lines if line.strip(b" .\r"))
            if rest.strip():
                self._lines.append(rest.decode("utf-8", "replace"))

    # -- the watching thread -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Kill a process that gives no sign of life, or whose work takes far longer than such work did before. Looks are
        counted, not seconds: a machine that slept for a night did not miss a beat."""
        limits = self._limits
        seen: Beat | None = None
        missed = 0
        while not self._ended.wait(limits.beat_seconds):
            beat = self._beat
            missed = missed + 1 if beat is seen and self._said_hello.is_set() else 0
            seen = beat
            if missed > limits.missed_beats:
                self.kill("gave no sign of life")
            elif beat is not None and beat.seconds > beat.allowed * limits.stuck_factor and beat.seconds > 0:
                self.kill(f"made no progress for {beat.seconds:.0f} s")


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry), "GGML_NO_BACKTRACE": "1"}
    apart: dict[str, Any] = {}
    # A session of its own: Ctrl-C in the terminal is for kvnotes, which cancels and goes on.
    if sys.platform == "win32":
        apart["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    else:
        apart["start_new_session"] = True
    return subprocess.Popen(
        [*command, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        **apart,
    )
