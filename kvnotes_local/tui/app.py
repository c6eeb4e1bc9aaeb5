"""The application: the host with its commands, its screens as modes, and its keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.screen import Screen

from kvnotes_local.tui.command_list import COMMANDS
from kvnotes_local.tui.host import Host
from kvnotes_local.tui.palette import KvnotesCommands
from kvnotes_local.tui.screens.confirm_quit import ConfirmQuit
from kvnotes_local.tui.screens.registry import screen_makers
from kvnotes_local.tui.start import Start
from kvnotes_local.tui.workbench.chat_requests import NewChat, Redo, Undo


class KvnotesApp(Host):
    """The host with everything that can be done and shown in it."""

    TITLE = "kvnotes"
    COMMANDS = {KvnotesCommands}
    MODES: ClassVar[dict[str, Callable[[], Screen[None]]]] = dict(screen_makers())  # type: ignore[assignment]
    DEFAULT_MODE = "chat"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "go('help')", "Help", show=False, id="go.help"),
        Binding("f2", "go('chat')", "Chat", show=False, id="go.chat"),
        Binding("f3", "go('skills')", "Skills", show=False, id="go.skills"),
        Binding("f4", "go('chats')", "Chats", show=False, id="go.chats"),
        Binding("f5", "go('models')", "Models", show=False, id="go.models"),
        Binding("f6", "go('bench')", "Bench", show=False, id="go.bench"),
        Binding("f7", "go('settings')", "Settings", show=False, id="go.settings"),
        Binding("f8", "go('log')", "Log", show=False, id="go.log"),
        Binding("f9", "restart_safer", "Restart safer", show=False, id="app.restart_safer"),
        Binding("ctrl+p", "command_palette", "Commands", id="app.palette"),
        Binding("ctrl+q", "quit", "Quit", id="app.quit"),
    ]

    def __init__(self, start: Start) -> None:
        super().__init__(start, COMMANDS, self._names_of_no_key)

    def _names_of_no_key(self, names: Collection[str]) -> Sequence[str]:
        if not names:
            return ()
        from kvnotes_local.tui.keys import unknown_keys  # looks at all screens

        return unknown_keys(type(self), names)

    def action_new_chat(self) -> None:
        self.try_idle(NewChat())
        self.action_go("chat")

    def action_undo(self) -> None:
        self.try_idle(Undo())

    def action_redo(self) -> None:
        self.try_idle(Redo())

    async def action_quit(self) -> None:
        """Leave; asks once while the engine works."""
        work = self.session.work
        if work is None:
            await self.leave()
        elif not isinstance(self.screen, ConfirmQuit):
            self.push_screen(ConfirmQuit(work.what), self._quit_confirmed)

    async def _quit_confirmed(self, quit: bool | None) -> None:
        if quit:
            await self.leave()
