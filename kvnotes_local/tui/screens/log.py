"""The logs: llama.cpp's and ours, as they grow."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from textual import events, on
from textual.binding import Binding
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Log, Static

from kvnotes_local.tui.news import LogRead
from kvnotes_local.tui.screens.base import KvnotesScreen
from kvnotes_local.tui.workbench.file_requests import ReadLog

SECONDS_BETWEEN_READINGS = 2.0


class LogScreen(KvnotesScreen):
    """One log at a time."""

    MODE = "log"
    CSS_PATH = ["base.tcss", "log.tcss"]
    BINDINGS = [
        Binding("o", "other", "Other log", id="log.other"),
        Binding("c", "copy", "Copy", id="log.copy"),
        Binding("escape", "app.stop", "Stop", show=False, id="log.stop"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._at = 0
        self._lines: tuple[str, ...] = ()

    @property
    def _path(self) -> Path:
        return self.kvnotes.start.places.log / ("kvnotes.log", "llama.log")[self._at]

    def body(self) -> Iterable[Widget]:
        yield Static(id="log-head")
        yield Log(id="log", highlight=False)

    def on_mount(self) -> None:
        self.set_interval(SECONDS_BETWEEN_READINGS, self._read_if_shown)

    @on(events.ScreenResume)
    def _read(self) -> None:
        self.kvnotes.submit(ReadLog(self._path))

    def _read_if_shown(self) -> None:
        if self.is_current:
            self._read()

    @on(LogRead)
    def _show(self, news: LogRead) -> None:
        if news.path != self._path or (news.lines == self._lines and news.lines):
            return
        self._lines = news.lines
        whose = ("kvnotes", "llama.cpp")[self._at]
        self.query_one("#log-head", Static).update(Content(f"Log of {whose}: {news.path}"))
        log = self.query_one(Log)
        log.clear()
        log.write_lines(news.lines or ("Nothing was logged yet.",))

    def action_other(self) -> None:
        self._at = 1 - self._at
        self._lines = ()
        self._read()

    def action_copy(self) -> None:
        self.kvnotes.copy("\n".join(self._lines), "The log")
