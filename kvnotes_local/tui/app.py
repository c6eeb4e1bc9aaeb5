"""The application: the host with its commands, its screens as modes, and its keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.screen import Screen

from kvnotes_local.tui.command_list import COMMANDS
from kvnotes_local.tui.commands import find_command
from kvnotes_local.tui.completion import complete
from kvnotes_local.tui.host import Host
from kvnotes_local.tui.palette import KvnotesCommands
from kvnotes_local.tui.screens.chat import ChatScreen
from kvnotes_local.tui.screens.confirm_quit import ConfirmQuit
from kvnotes_local.tui.screens.registry import screen_makers
from kvnotes_local.tui.widgets.composer import Completion
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

    def run_command(self, line: str) -> None:
        command, rest = find_command(line, COMMANDS)
        command.run(self, rest)

    def complete(self, line: str) -> Sequence[Completion]:
        return complete(line, COMMANDS, self.session, list(self.settings.presets))

    def write_in_composer(self, text: str, at: int | None = None) -> None:
        self.action_go("chat")
        if isinstance(self.screen, ChatScreen):
            self.screen.compose_text(text, at)

    def unknown_keys(self) -> Sequence[str]:
        if not self.settings.keys:
            return ()
        from kvnotes_local.tui.keys import unknown_keys  # looks at all screens

        return unknown_keys(type(self), self.settings.keys)

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
