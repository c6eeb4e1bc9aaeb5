"""Measuring what splicing does here: how fast it is, how close to reading, and where a model keeps its notes."""

from __future__ import annotations

from collections.abc import Iterable

from textual import on
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Button, Static

from kvnotes_local.tui.news import BenchDone, ChatVerified, ProbeDone
from kvnotes_local.tui.plots import bench_plot, check_report, probe_plot
from kvnotes_local.tui.screens.base import KvnotesScreen
from kvnotes_local.tui.workbench.evaluation_requests import RunBench, RunProbe, VerifyChat

WHAT_FOR = """\
Nothing was measured yet.

b  speed: the time to the first token, when a skill is read and when it is spliced, by its length (some minutes)
v  this chat: would reading it afresh have said something else? (about as long as reading it once)
p  notes: which rows behind a field carry the decision that it leads to (some minutes)

The open chat is put aside meanwhile and comes back afterwards. Esc stops."""


class BenchScreen(KvnotesScreen):
    """Three measurements and the last result."""

    MODE = "bench"
    CSS_PATH = ["base.tcss", "bench.tcss"]
    AUTO_FOCUS = "#result-scroll"
    BINDINGS = [
        Binding("b", "bench", "Speed", id="bench.speed"),
        Binding("v", "verify", "This chat", id="bench.chat"),
        Binding("p", "probe", "Notes", id="bench.probe"),
        Binding("escape", "app.stop", "Stop", id="bench.stop"),
    ]

    def body(self) -> Iterable[Widget]:
        with Horizontal(id="bench-buttons"):
            yield Button("Speed (b)", id="bench")
            yield Button("This chat against reading it (v)", id="verify")
            yield Button("Where the notes are (p)", id="probe")
        with VerticalScroll(id="result-scroll", can_focus=True):
            yield Static(Content(WHAT_FOR), id="result")

    @on(BenchDone)
    def _bench_done(self, news: BenchDone) -> None:
        self._show(bench_plot(news.model, news.rows, self.size.width))

    @on(ProbeDone)
    def _probe_done(self, news: ProbeDone) -> None:
        self._show(probe_plot(news.model, news.probe, self.size.width))

    @on(ChatVerified)
    def _verified(self, news: ChatVerified) -> None:
        self._show(check_report(news.check))

    def _show(self, result: Content) -> None:
        self.query_one("#result", Static).update(result)

    @on(Button.Pressed, "#bench")
    def action_bench(self) -> None:
        self.kvnotes.try_idle(RunBench())

    @on(Button.Pressed, "#verify")
    def action_verify(self) -> None:
        self.kvnotes.try_idle(VerifyChat())

    @on(Button.Pressed, "#probe")
    def action_probe(self) -> None:
        self.kvnotes.try_idle(RunProbe())
