"""Settings: theme, edits, sampling, mouse and keys. Each change is written to the file at once; comments stay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from rich.text import Text
from textual import events, on
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import DataTable, Input, Label, Select, Static, Switch

from kvnotes_local.contract.generation import Sampling
from kvnotes_local.errors import UsageError
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.tui.command_list import changed_sampling
from kvnotes_local.tui.keys import BoundKey, bound_keys
from kvnotes_local.tui.screens.base import KvnotesScreen

_SAMPLING = [one.name for one in fields(Sampling) if one.name != "grammar"]


class SettingsScreen(KvnotesScreen):
    """What can be set on the left, keys on the right."""

    MODE = "settings"
    CSS_PATH = ["base.tcss", "settings.tcss"]
    AUTO_FOCUS = "#theme"
    BINDINGS = [Binding("escape", "back", "Back", id="settings.back")]

    def body(self) -> Iterable[Widget]:
        app, settings = self.kvnotes, self.kvnotes.settings
        with Horizontal(classes="list-and-detail"):
            with VerticalScroll(id="options"):
                with Horizontal(classes="row"):
                    yield Label("Theme")
                    yield Select(
                        [(name, name) for name in sorted(app.available_themes)],
                        value=app.theme,
                        allow_blank=False,
                        compact=True,
                        id="theme",
                    )
                with Horizontal(classes="row"):
                    yield Label("Edits go as far as")
                    yield Select(
                        [(level.value, level) for level in EditLevel],
                        value=settings.edit_level,
                        allow_blank=False,
                        compact=True,
                        id="level",
                    )
                with Horizontal(classes="row"):
                    yield Label("Mouse")
                    yield Switch(settings.mouse, id="mouse")
                    yield Label("at the next start", classes="note")
                yield Static("How answers are drawn", classes="heading")
                with Horizontal(classes="row"):
                    yield Label("Preset")
                    yield Select(
                        [(name, name) for name in settings.presets],
                        value=settings.preset,
                        allow_blank=False,
                        compact=True,
                        id="preset",
                    )
                for name in _SAMPLING:
                    with Horizontal(classes="row"):
                        yield Label(name.replace("_", " "))
                        yield Input(f"{getattr(settings.sampling, name):g}", id=f"sampling-{name}")
                with Horizontal(classes="row"):
                    yield Label("longest answer")
                    yield Input(str(settings.max_tokens), type="integer", id="max-tokens")
                yield Static(id="settings-file")
            with Vertical(id="keys"):
                yield Static("Keys: Enter changes one", classes="heading")
                yield DataTable[Text](id="keys-table", cursor_type="row")
                yield Input(id="key-input", placeholder="a key, as in ctrl+n; empty for the usual one")

    def on_mount(self) -> None:
        table = self.query_one("#keys-table", DataTable)
        table.add_column("what", width=16)
        table.add_column("keys", width=20)
        table.add_column("name", width=22)
        self.query_one("#key-input").display = False
        self.query_one("#settings-file", Static).update(Content(f"File: {self.kvnotes.settings_file.path}"))

    @on(events.ScreenResume)
    def _show(self) -> None:
        table = self.query_one("#keys-table", DataTable)
        row = table.cursor_row
        table.clear()
        for key in bound_keys(self.kvnotes):
            table.add_row(Text(key.what), Text(key.shown), Text(key.id))
        table.move_cursor(row=row)
        self.query_one("#theme", Select).value = self.kvnotes.theme
        self.query_one("#level", Select).value = self.kvnotes.settings.edit_level

    @on(Select.Changed, "#theme")
    def _set_theme(self, event: Select.Changed) -> None:
        if event.value != self.kvnotes.theme:
            self.kvnotes.change_setting(("theme",), str(event.value))

    @on(Select.Changed, "#level")
    def _set_level(self, event: Select.Changed) -> None:
        level = event.value
        if isinstance(level, EditLevel) and level is not self.kvnotes.settings.edit_level:
            self.kvnotes.change_setting(("edit_level",), level.value)

    @on(Select.Changed, "#preset")
    def _set_preset(self, event: Select.Changed) -> None:
        if event.value == self.kvnotes.settings.preset:
            return
        self.kvnotes.change_setting(("preset",), str(event.value))
        for name in _SAMPLING:
            self.query_one(f"#sampling-{name}", Input).value = f"{getattr(self.kvnotes.settings.sampling, name):g}"

    @on(Switch.Changed, "#mouse")
    def _set_mouse(self, event: Switch.Changed) -> None:
        if event.value != self.kvnotes.settings.mouse:
            self.kvnotes.change_setting(("mouse",), event.value)

    @on(Input.Submitted)
    @on(Input.Blurred)
    def _set_number(self, event: Input.Submitted | Input.Blurred) -> None:
        settings, id_ = self.kvnotes.settings, event.input.id or ""
        try:
            if id_ == "max-tokens":
                if not event.value.isdigit() or not 1 <= int(event.value) < 1 << 20:
                    raise UsageError(f"The longest answer has to be a number of tokens, not {event.value!r}.")
                if int(event.value) != settings.max_tokens:
                    self.kvnotes.change_setting(("max_tokens",), int(event.value))
            elif id_.startswith("sampling-"):
                name = id_.removeprefix("sampling-")
                value = getattr(changed_sampling(settings.sampling, name, event.value), name)
                if value != getattr(settings.sampling, name):
                    self.kvnotes.change_setting(("presets", settings.preset, name), value)
        except UsageError as error:
            self.kvnotes.tell(str(error), failed=True)

    @on(DataTable.RowSelected, "#keys-table")
    def _ask_key(self) -> None:
        field = self.query_one("#key-input", Input)
        field.border_title = self._chosen.id
        field.value = self._chosen.keys
        field.display = True
        field.focus()

    @on(Input.Submitted, "#key-input")
    def _set_key(self, event: Input.Submitted) -> None:
        chosen = self._chosen
        self.action_back()
        if event.value.strip() != chosen.keys:
            self.kvnotes.change_setting(("keys", chosen.id), event.value.strip() or chosen.usual)
            self._show()

    @property
    def _chosen(self) -> BoundKey:
        return bound_keys(self.kvnotes)[self.query_one("#keys-table", DataTable).cursor_row]

    def action_back(self) -> None:
        field = self.query_one("#key-input", Input)
        if field.display:
            field.display = False
            self.query_one("#keys-table").focus()
        else:
            self.kvnotes.action_go("chat")
