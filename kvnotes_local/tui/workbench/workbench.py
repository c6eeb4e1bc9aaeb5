"""Two threads that carry out requests: one owns the model and the open chat, the other one reads and writes files."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from kvnotes_local.errors import Cancelled, KvnotesError
from kvnotes_local.session.opening import OpenEngine
from kvnotes_local.session.places import Places
from kvnotes_local.tui.news import Failure, News, WorkBegan, WorkEnded
from kvnotes_local.tui.workbench.desk import (
    ChatDefaults,
    Desk,
    EngineDesk,
    EngineRequest,
    FileDesk,
    FileRequest,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Job:
    id: int
    what: str
    run: Callable[[], None]


class Lane:
    """A desk with its thread and the requests that wait for it. ``quiet``: only failures are reported, not begin and end."""

    def __init__(self, desk: Desk, *, name: str, quiet: bool = False) -> None:
        self.desk = desk
        self._quiet = quiet
        self._lock = threading.Lock()
        self._cancelled = 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, job: _Job) -> None:
        self._jobs.put(job)

    def cancel(self, up_to: int) -> None:
        """Jobs up to this number shall stop, or not begin."""
        with self._lock:
            self._cancelled = up_to
            self.desk.stop.set()

    def close(self) -> None:
        """Close the desk when everything that was asked for is done, and wait for that."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._carry_out(job)
        try:
            self.desk.close()
        except Exception:
            log.exception("The workbench could not be left in order.")

    def _carry_out(self, job: _Job) -> None:
        desk, ok = self.desk, False
        with self._lock:
            if job.id <= self._cancelled:
                desk.tell(WorkEnded(job.id, ok, waiting=self._jobs.qsize()))
                return
            desk.stop.clear()
        if not self._quiet:
            desk.tell(WorkBegan(job.what, job.id))
        try:
            job.run()
            ok = True
            desk.done(job.what)
        except Cancelled:
            log.info("%s: stopped", job.what)
        except KvnotesError as error:
            log.warning("%s: %s", job.what, error)
            desk.failed(job.what, error)
        except Exception as error:
            # A defect of this program: the screens stay, the details are in the log.
            log.exception("%s failed", job.what)
            desk.tell(
                Failure(job.what, f"{type(error).__name__}: {error}. This is a defect; the log (F8) has the details.")
            )
        finally:
            desk.tell(WorkEnded(job.id, ok, waiting=self._jobs.qsize()))


class Workbench:
    """Takes requests from the screens, in any number; ``tell`` is called with what becomes of them, from other threads."""

    def __init__(self, places: Places, tell: Callable[[News], None], open_engine: OpenEngine) -> None:
        self.places = places
        self._desk = EngineDesk(places, tell, open_engine)
        self.n_submitted = 0
        self._engine_lane = Lane(self._desk, name="kvnotes-engine")
        self._file_lane = Lane(FileDesk(places, tell), name="kvnotes-files", quiet=True)

    def submit(self, request: EngineRequest | FileRequest) -> int:
        """Have something done; the number by which ``WorkEnded`` names it."""
        self.n_submitted = number = self.n_submitted + 1
        if isinstance(request, EngineRequest):
            self._engine_lane.put(_Job(number, request.what, lambda: request.run(self._desk)))
        else:
            desk = self._file_lane.desk
            assert isinstance(desk, FileDesk)
            self._file_lane.put(_Job(number, request.what, lambda: request.run(desk)))
        return number

    def set_defaults(self, defaults: ChatDefaults) -> None:
        """How answers of chats that are begun from now on are drawn."""
        self._desk.defaults = defaults

    def cancel(self) -> None:
        """Stop what the engine does and forget what waits for it. An answer keeps what was said so far."""
        self._engine_lane.cancel(self.n_submitted)
        self._desk.cancel()

    def close(self) -> None:
        """Stop, save the open chat's state, give the model back, and wait for that."""
        self.cancel()
        self._engine_lane.close()
        self._file_lane.close()
