"""How a batch of skills is told while it runs: a bar on a terminal, lines elsewhere, or one JSON object a line."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from kvnotes_local.cli.output import Output
from kvnotes_local.session.quantities import human_seconds
from kvnotes_local.terminal_text import safe_line
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_LINE_SECONDS = 10.0


class ProgressStyle(StrEnum):
    """AUTO: a bar where stderr is a terminal, else lines."""

    AUTO = "auto"
    BAR = "bar"
    LINES = "lines"
    JSON = "json"
    NONE = "none"


class BatchReport(Protocol):
    """Hears of a batch. ``event`` is for machines, ``line`` for people; both say the same."""

    def begin(self, model: str, n_tokens: int) -> None:
        """A model's skills are made from now on: so many tokens."""
        ...

    def advance(self, model: str, skill: str, done: int, total: int, batch_done: int) -> None:
        """``done`` of a skill's tokens and ``batch_done`` of the model's are read."""
        ...

    def end(self) -> None:
        """The model's skills are done, or the batch has stopped."""
        ...

    def tell(self, line: str, event: str, **facts: Any) -> None:
        """Something has happened: a line on stdout, or an event."""
        ...

    def note(self, line: str, event: str, **facts: Any) -> None:
        """Something has gone wrong, or goes on: a line on stderr, or an event."""
        ...


def batch_report(style: ProgressStyle, output: Output) -> BatchReport:
    """The report that suits the style and what stderr is."""
    if style is ProgressStyle.JSON:
        return _JsonReport(output)
    if style is ProgressStyle.NONE or output.quiet:
        return _PlainReport(output)
    if style is ProgressStyle.BAR or (style is ProgressStyle.AUTO and sys.stderr.isatty()):
        return _BarReport(output)
    return _LinesReport(output)


class _PlainReport:
    def __init__(self, output: Output) -> None:
        self._output = output

    def begin(self, model: str, n_tokens: int) -> None:
        return

    def advance(self, model: str, skill: str, done: int, total: int, batch_done: int) -> None:
        return

    def end(self) -> None:
        return

    def tell(self, line: str, event: str, **facts: Any) -> None:
        self._output.text(line)

    def note(self, line: str, event: str, **facts: Any) -> None:
        self._output.note(line)


class _LinesReport(_PlainReport):
    def begin(self, model: str, n_tokens: int) -> None:
        self._total = n_tokens
        self._began = self._last = time.monotonic()

    def advance(self, model: str, skill: str, done: int, total: int, batch_done: int) -> None:
        now = time.monotonic()
        if now - self._last >= _LINE_SECONDS and batch_done:
            self._last = now
            left = human_seconds((now - self._began) * (self._total - batch_done) / batch_done)
            self._output.note(f"{model}: {batch_done:,}/{counted(self._total, 'token')}, {skill}, about {left} left")


class _JsonReport(_PlainReport):
    """One object a line on stderr, so that stdout stays the result's."""

    def begin(self, model: str, n_tokens: int) -> None:
        self._total = n_tokens

    def advance(self, model: str, skill: str, done: int, total: int, batch_done: int) -> None:
        self._output.event(
            "progress",
            {"model": model, "skill": skill, "done": done, "total": total}
            | {"batch_done": batch_done, "batch_total": self._total},
        )

    def tell(self, line: str, event: str, **facts: Any) -> None:
        self._output.event(event, facts)
        super().tell(line, event)

    def note(self, line: str, event: str, **facts: Any) -> None:
        self._output.event(event, facts or {"message": line})


class _BarReport(_PlainReport):
    def __init__(self, output: Output) -> None:
        super().__init__(output)
        self._bar: RichProgress | None = None

    def begin(self, model: str, n_tokens: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.fields[of]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._bar.add_task(safe_line(model), total=n_tokens, of=counted(n_tokens, "token"))
        self._bar.start()

    def advance(self, model: str, skill: str, done: int, total: int, batch_done: int) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=batch_done, description=safe_line(f"{model}: {skill}"))

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def tell(self, line: str, event: str, **facts: Any) -> None:
        # The bar stands on the terminal's last line, where the text has to go.
        if self._bar is not None:
            self._bar.stop()
        super().tell(line, event)
        if self._bar is not None:
            self._bar.start()

    def note(self, line: str, event: str, **facts: Any) -> None:
        if self._bar is not None:
            self._bar.stop()
        super().note(line, event)
        if self._bar is not None:
            self._bar.start()
