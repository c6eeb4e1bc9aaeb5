"""Help: what the signs mean, the commands, and the keys as they are bound now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from textual import events, on
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from kvnotes_local.tui.command_list import COMMANDS
from kvnotes_local.tui.freshness import LOOKS
from kvnotes_local.tui.keys import bound_keys
from kvnotes_local.tui.screens.base import KvnotesScreen

INTRODUCTION = (
    "A chat is a notebook: segments that the model has read, with the keys and values it made of them in a cache. A skill "
    "that was compiled once is spliced in without being read; a field can be changed without reading everything again. The "
    "strip at the top of the chat shows where each token's rows come from."
)


class HelpScreen(KvnotesScreen):
    """One page."""

    MODE = "help"
    CSS_PATH = ["base.tcss", "help.tcss"]
    BINDINGS = [Binding("escape", "app.go('chat')", "Back to the chat", id="help.back")]

    def body(self) -> Iterable[Widget]:
        with VerticalScroll(id="help"):
            yield Static(id="help-text")

    @on(events.ScreenResume)
    def _show(self) -> None:
        self.query_one("#help-text", Static).update(Content("\n").join(list(self._lines())))

    def _lines(self) -> Iterator[Content]:
        yield Content(INTRODUCTION)
        yield _heading("What the signs and colours mean")
        for freshness, look in LOOKS.items():
            yield Content.assemble("  ", (look.sign * 3, look.style), f"  {freshness.value:<9} {look.meaning}")
        yield _heading("Commands (type them in the chat; Ctrl+P has all of them)")
        for command in COMMANDS:
            yield Content(f"  {f'/{command.name} {command.usage}':<34} {command.help}")
        yield _heading("Keys (change them on the Settings screen, or by their names in settings.toml)")
        for key in bound_keys(self.kvnotes):
            yield Content(f"  {key.shown:<22} {key.what:<24} {key.id}")


def _heading(text: str) -> Content:
    return Content.assemble("\n", (text, "bold"))
