"""The command palette: every command, every screen, and the skills and fields by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.markup import escape

from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.terminal_text import safe_line
from kvnotes_local.tui.command_list import COMMANDS
from kvnotes_local.tui.commands import LEVEL_OPTION
from kvnotes_local.tui.host import Host
from kvnotes_local.tui.widgets.nav_bar import SCREENS

Entry = tuple[str, str, Callable[[], object]]


class KvnotesCommands(Provider):
    """A command that needs more than its name is begun in the composer."""

    @property
    def _kvnotes(self) -> Host:
        assert isinstance(self.app, Host)
        return self.app

    async def discover(self) -> Hits:
        for name, help_, run in self._entries():
            yield DiscoveryHit(Content(name), run, name, escape(help_))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, help_, run in (*self._entries(), *self._skills(), *self._fields()):
            score = max(matcher.match(name), matcher.match(help_))
            if score > 0:
                yield Hit(score, matcher.highlight(name), run, name, escape(help_))

    def _entries(self) -> Iterator[Entry]:
        app = self._kvnotes
        for mode, (key, title) in SCREENS.items():
            if mode in app.MODES:
                yield f"{title}", f"show this screen ({key.upper()})", partial(app.action_go, mode)
        for command in COMMANDS:
            name = f"/{command.name} {command.usage}".rstrip()
            if command.needs:
                yield name, command.help, partial(app.write_in_composer, f"/{command.name} ")
            else:
                yield name, command.help, partial(app.run_line, f"/{command.name}")

    def _skills(self) -> Iterator[Entry]:
        app = self._kvnotes
        for skill in app.session.skills:
            name = safe_line(skill.name)
            yield f"Splice {name}", safe_line(skill.description, 60), partial(app.run_line, f"/skill {skill.name}")

    def _fields(self) -> Iterator[Entry]:
        app = self._kvnotes
        chat = app.session.chat
        for name, value in chat.fields.items() if chat is not None else ():
            begin = partial(app.write_in_composer, f"/set {name} = ")
            yield f"Set {safe_line(name)}", f"now {safe_line(value, 40)}", begin
            for level in EditLevel:
                # The value goes in front of the level.
                begin = partial(
                    app.write_in_composer, f"/set {name} = {LEVEL_OPTION}{level.value}", len(f"/set {name} = ")
                )
                yield f"Set {safe_line(name)}, level {level.value}", "for this edit only", begin
