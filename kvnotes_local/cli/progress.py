"""Progress of longer work on stderr: a bar with the time left on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvnotes_local.cli.output import Output
from kvnotes_local.errors import Cancelled
from kvnotes_local.session.quantities import human_seconds
from kvnotes_local.terminal_text import safe_line
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from kvnotes_local.contract.protocol import Progress

_QUIET_SECONDS = 1.0
_LINE_SECONDS = 10.0


@contextmanager
def compile_progress(output: Output, what: str) -> Iterator[Progress]:
    """A progress callback in tokens, shown once the work takes longer than a second."""
    if output.quiet:
        yield lambda done, total: None
        return
    shown = _Bar(what) if sys.stderr.isatty() else _Lines(output, what)
    try:
        yield shown
    finally:
        shown.close()


class _Bar:
    """rich's bar, imported only when there is something to show."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = time.monotonic()
        self._bar: RichProgress | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            if time.monotonic() - self._began < _QUIET_SECONDS or done >= total:
                return
            self._bar = self._start(total)
        self._bar.update(self._bar.task_ids[0], completed=done, total=total, of=counted(total, "token"))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _start(self, total: int) -> RichProgress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.fields[of]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        bar.add_task(safe_line(self._what), total=total, of=counted(total, "token"))
        bar.start()
        return bar


class _Lines:
    def __init__(self, output: Output, what: str) -> None:
        self._output = output
        self._what = what
        self._began = self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last >= _LINE_SECONDS and done:
            self._last = now
            left = (now - self._began) * (total - done) / done
            self._output.note(f"{self._what}: {done:,}/{counted(total, 'token')}, about {human_seconds(left)} left")

    def close(self) -> None:
        return


@contextmanager
def step_progress(output: Output, stop: threading.Event) -> Iterator[Callable[[str], None]]:
    """A callback for what is done now: one changing line on a terminal, now and then a line elsewhere. It raises Cancelled once
    ``stop`` is set, since a signal between two calls of the engine stops none of them."""
    with _step_lines(output) as show:

        def tell(what: str) -> None:
            if stop.is_set():
                raise Cancelled("Stopped.")
            show(what)

        yield tell


@contextmanager
def _step_lines(output: Output) -> Iterator[Callable[[str], None]]:
    if output.quiet:
        yield lambda what: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.text import Text

        with Console(stderr=True).status("") as status:
            yield lambda what: status.update(Text(safe_line(what)))
    else:
        last = time.monotonic()

        def tell(what: str) -> None:
            nonlocal last
            if time.monotonic() - last >= _LINE_SECONDS:
                last = time.monotonic()
                output.note(what)

        yield tell
