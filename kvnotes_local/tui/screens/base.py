"""What all screens share: the bar of screens above, the line of messages and the keys below, and the news."""

from __future__ import annotations

from collections.abc import Iterable

from textual import events, on
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Button, Footer

from kvnotes_local.tui.host import Host
from kvnotes_local.tui.news import News
from kvnotes_local.tui.state import SessionState
from kvnotes_local.tui.widgets.message_line import MessageLine
from kvnotes_local.tui.widgets.nav_bar import NavBar
from kvnotes_local.tui.widgets.safer_bar import SaferBar


class KvnotesScreen(Screen[None]):
    """A screen that is told the news, shown or not. ``MODE``: its name among the app's modes."""

    MODE = ""
    CSS_PATH = ["base.tcss"]

    @property
    def kvnotes(self) -> Host:
        app = self.app
        assert isinstance(app, Host)
        return app

    @property
    def session(self) -> SessionState:
        return self.kvnotes.session

    def compose(self) -> ComposeResult:
        yield NavBar(self.MODE)
        yield from self.body()
        yield SaferBar(id="safer")
        yield MessageLine(id="message")
        yield from self.foot()
        yield Footer(compact=True, show_command_palette=False)

    def body(self) -> Iterable[Widget]:
        """The widgets of this screen."""
        return ()

    def foot(self) -> Iterable[Widget]:
        """Widgets between the line of messages and the keys."""
        return ()

    @on(events.Mount)
    def _subscribe(self) -> None:
        self.kvnotes.news.subscribe(self, self.post_message, immediate=True)
        self._tell_bars()

    @on(News)
    def _tell_bars(self) -> None:
        self.query_one(MessageLine).session = self.session
        self.query_one(SaferBar).session = self.session

    @on(Button.Pressed, "#safer-restart")
    def _restart(self) -> None:
        self.kvnotes.action_restart_safer()
