"""After the engine died twice in the same work: what may help, with one key."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Button, Static

from kvnotes_local.tui.state import SessionState


class SaferBar(Horizontal):
    """Hidden as long as nothing is offered."""

    session: reactive[SessionState] = reactive(SessionState())

    def compose(self) -> ComposeResult:
        yield Static(id="safer-text")
        yield Button("Restart (F9)", id="safer-restart", variant="primary", compact=True)

    def on_mount(self) -> None:
        self.display = False

    def watch_session(self, session: SessionState) -> None:
        offer = session.safer
        self.display = offer is not None and session.work is None
        if offer is not None:
            self.query_one("#safer-text", Static).update(
                Content(f"The engine died twice. F9 restarts it {offer.change}. The chat is kept and can be exported.")
            )
