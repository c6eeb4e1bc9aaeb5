"""Asked once when the app is left while it works."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Label

from kvnotes_local.terminal_text import safe_line


class ConfirmQuit(ModalScreen[bool]):
    """Dismissed with True when the user wants to leave."""

    CSS_PATH = ["confirm_quit.tcss"]
    BINDINGS = [
        Binding("escape,n", "answer(False)", "Stay", id="quit.stay"),
        Binding("y,ctrl+q", "answer(True)", "Quit", id="quit.quit", priority=True),
    ]

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def compose(self) -> ComposeResult:
        with Vertical(id="confirm"):
            yield Label(f"{safe_line(self._what)} is under way.", markup=False)
            yield Label("It will be stopped. What was said so far is kept.")
            with Horizontal(id="confirm-buttons"):
                yield Button("Quit (y)", id="quit", variant="default")
                yield Button("Stay (Esc)", id="stay", variant="primary")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "quit")

    def action_answer(self, quit: bool) -> None:
        self.dismiss(quit)
