"""The chat as what it is: its segments in order, with tokens and freshness, and its fields."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import DataTable, Input, OptionList, Static
from textual.widgets.option_list import Option

from kvnotes_local.notebook.edit import EditLevel, EditResult
from kvnotes_local.notebook.segment import Kind, Segment
from kvnotes_local.terminal_text import safe_line
from kvnotes_local.tui.freshness import LOOKS, count_tokens
from kvnotes_local.tui.views import ChatView

_NAME_WIDTH = 13


class NotebookPanel(Vertical):
    """Segments above, fields below."""

    def __init__(self) -> None:
        super().__init__(id="notebook")

    def compose(self) -> ComposeResult:
        yield Static("Notebook", classes="panel-title")
        yield SegmentList(id="segments")
        yield Static("Fields", classes="panel-title", id="fields-title")
        yield FieldsTable(id="fields")

    def show(self, chat: ChatView | None) -> None:
        self.query_one(SegmentList).show(chat.segments if chat is not None else ())
        self.query_one(FieldsTable).show(chat.fields if chat is not None else {})


class SegmentList(OptionList):
    """One line a segment: kind or name, tokens, freshness in a word and a colour. Enter shows it in the transcript."""

    BINDINGS = [
        Binding("d,delete", "remove", "Delete", id="segments.delete"),
        Binding("i", "insert", "Splice before", id="segments.insert"),
    ]

    @dataclass
    class Chosen(Message):
        """The segment ``index`` shall be shown."""

        index: int

    @dataclass
    class RemoveAsked(Message):
        """The segment ``index`` shall go."""

        index: int

    @dataclass
    class InsertAsked(Message):
        """A skill shall be spliced before the segment ``index``."""

        index: int

    def show(self, segments: tuple[Segment, ...]) -> None:
        chosen = self.highlighted
        self.clear_options()
        self.add_options(Option(segment_line(segment)) for segment in segments)
        if segments:
            self.highlighted = min(chosen or 0, len(segments) - 1)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Chosen(event.option_index))

    def action_remove(self) -> None:
        if self.highlighted is not None:
            self.post_message(self.RemoveAsked(self.highlighted))

    def action_insert(self) -> None:
        if self.highlighted is not None:
            self.post_message(self.InsertAsked(self.highlighted))


def segment_line(segment: Segment) -> Content:
    """``name  tokens ▓ freshness``; a plus says that some tokens differ."""
    name = segment.name if segment.kind is Kind.SKILL else segment.kind.value
    if segment.kind is Kind.ERRATUM:
        name = f"✎ {segment.name}" if segment.name else "correction"
    look = LOOKS[segment.freshness]
    mixed = "+" if sum(1 for n in count_tokens(segment.runs).values() if n) > 1 else ""
    return Content.assemble(
        safe_line(name, _NAME_WIDTH).ljust(_NAME_WIDTH),
        f"{segment.n_tokens:>6,} ",
        (f"{look.sign} {segment.freshness.value}{mixed}", look.style),
    )


class FieldsTable(Vertical):
    """Fields and their values; Enter changes one. Below: how far edits go, and what the last one cost.

    While a value is written, Ctrl+L chooses a level for this edit only.
    """

    BINDINGS = [
        Binding("l", "level", "Edit level", id="fields.level"),
        Binding("ctrl+l", "level_once", "Level of this edit", show=False, id="fields.level_once"),
    ]

    @dataclass
    class Changed(Message):
        """The user gives a field another value, with an edit of this level."""

        name: str
        value: str
        level: EditLevel

    class LevelAsked(Message):
        """The user wants the next level of edits."""

    def compose(self) -> ComposeResult:
        table: DataTable[Text] = DataTable(cursor_type="row", id="fields-table", zebra_stripes=True)
        yield table
        yield Input(id="field-value")
        yield Static(id="fields-note")

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        table.add_column("field", width=15)
        table.add_column("value", width=16)
        self._fields: dict[str, str] = {}
        self._edited = ""
        self._level = self._level_once = EditLevel.FIELD_ERRATUM
        self._cost = ""
        self.query_one(Input).display = False
        self._note()

    def show(self, fields: dict[str, str]) -> None:
        if fields == self._fields and fields:
            return
        self._fields = dict(fields)
        table = self.query_one(DataTable)
        row = table.cursor_row
        table.clear()
        for name, value in fields.items():
            table.add_row(Text(safe_line(name, 15)), Text(safe_line(value, 16)))
        if fields:
            table.move_cursor(row=min(row, len(fields) - 1))
        table.display = bool(fields)
        self._note()

    def show_level(self, level: EditLevel) -> None:
        if level is not self._level:
            self._level = level
            self._note()

    def show_result(self, result: EditResult) -> None:
        """What an edit did and what it cost."""
        trial = f" ({result.trial:,} to find the level)" if result.trial else ""
        self._cost = (
            f"{safe_line(result.field)}: {result.level.value}, {result.decoded:,} computed{trial}, "
            f"{result.moved:,} moved; {result.reason}"
        )
        self._note()

    def action_level(self) -> None:
        self.post_message(self.LevelAsked())

    def action_level_once(self) -> None:
        if self.query_one(Input).display:
            levels = list(EditLevel)
            self._level_once = levels[(levels.index(self._level_once) + 1) % len(levels)]
            self._show_level_once()

    def _show_level_once(self) -> None:
        self.query_one(Input).border_subtitle = f"{self._level_once.value} (^L)"

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        self._edited = list(self._fields)[event.cursor_row]
        field = self.query_one(Input)
        field.value = self._fields[self._edited]
        field.border_title = safe_line(self._edited, 30)
        field.display = True
        field.focus()
        self._level_once = self._level
        self._show_level_once()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._leave_input()
        if event.value != self._fields.get(self._edited):
            self.post_message(self.Changed(self._edited, event.value, self._level_once))

    def leave_input(self) -> bool:
        """Leave a value as it is; False when none was being edited."""
        if not self.query_one(Input).display:
            return False
        self._leave_input()
        return True

    def _leave_input(self) -> None:
        self.query_one(DataTable).focus()
        self.query_one(Input).display = False

    def _note(self) -> None:
        if not self._fields:
            text = "No fields. {{name|value}} in a skill makes one."
        else:
            text = f"Enter changes a value.\nLevel (l): {self._level.value}"
        if self._cost:
            text += f"\n{self._cost}"
        self.query_one("#fields-note", Static).update(Content(text))
