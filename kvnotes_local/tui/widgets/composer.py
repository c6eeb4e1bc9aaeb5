"""Where users write: Enter sends, Shift+Enter or Ctrl+J begins a new line, Up brings back what was sent before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static, TextArea
from textual.widgets.option_list import Option

from kvnotes_local.terminal_text import safe_line

MAX_HISTORY = 200


@dataclass(frozen=True)
class Completion:
    """``text``: the whole line that it makes. ``label`` and ``help``: as shown."""

    text: str
    label: str
    help: str = ""


Complete = Callable[[str], Sequence[Completion]]
"""Completions of a line that begins with a slash."""


class Composer(Vertical):
    """A text area with a list of completions above it. Its text survives everything but sending; ``give_back`` takes what was
    sent and refused."""

    @dataclass
    class Sent(Message):
        """``text``: what was written. ``editing``: the segment that it replaces."""

        text: str
        editing: int | None

    class NothingToSend(Message):
        """Enter was pressed in an empty composer."""

    def __init__(self, complete: Complete) -> None:
        super().__init__(id="composer")
        self._complete = complete
        self._history: list[str] = []
        self._at = 0
        self._draft = ""
        self._completed = ""
        self.editing: int | None = None

    def compose(self) -> ComposeResult:
        yield CompletionList(id="completions")
        yield Static(id="composer-mode")
        yield ComposerText(id="composer-text", placeholder="Ask something, or type / for commands")

    def on_mount(self) -> None:
        self.query_one(CompletionList).display = False
        self.query_one("#composer-mode").display = False

    @property
    def area(self) -> ComposerText:
        return self.query_one(ComposerText)

    @property
    def text(self) -> str:
        return self.area.text

    def write(self, text: str, *, editing: int | None = None) -> None:
        """Put a text into the composer and go there. ``editing``: the segment that it shall replace."""
        self.editing = editing
        mode = self.query_one("#composer-mode", Static)
        mode.display = editing is not None
        mode.update("Editing an earlier question: Enter asks it instead, Esc leaves it.")
        self.area.load_text(text)
        self.area.move_cursor(self.area.document.end)
        self.area.focus()

    def stop_editing(self) -> bool:
        """Leave an earlier question as it is; False when none was being edited."""
        if self.editing is None:
            return False
        self.write("")
        return True

    def hide_completions(self) -> bool:
        """False when there were none."""
        shown = self.query_one(CompletionList)
        was, shown.display = shown.display, False
        return was

    # -- keys of the text area -------------------------------------------------------------------------------------------

    def send(self) -> None:
        text = self.text.strip()
        if not text:
            self.post_message(self.NothingToSend())
            return
        if not self._history or self._history[-1] != text:
            self._history = [*self._history, text][-MAX_HISTORY:]
        self._at, self._draft = len(self._history), ""
        self.post_message(self.Sent(text, self.editing))
        self.write("")  # at once: what is typed from now on is no part of it
        self.hide_completions()

    def give_back(self, sent: Sent) -> None:
        """Put what was sent in front of what was written since."""
        self.write(sent.text + self.text, editing=sent.editing)
        self._completed = self.text
        self.hide_completions()

    def recall(self, step: int) -> bool:
        """Go through what was sent before; False at the end of it."""
        at = self._at + step
        if not 0 <= at <= len(self._history):
            return False
        if self._at == len(self._history):
            self._draft = self.text
        self._at = at
        text = self._draft if at == len(self._history) else self._history[at]
        self.area.load_text(text)
        self.area.move_cursor(self.area.document.end)
        return True

    def take_completion(self) -> bool:
        """Take the chosen completion; False when none is shown."""
        self._show_completions()
        shown = self.query_one(CompletionList)
        if not shown.display or shown.highlighted is None:
            return False
        completion = shown.completions[shown.highlighted]
        self.area.load_text(completion.text)
        self.area.move_cursor(self.area.document.end)
        return True

    def move_completion(self, step: int) -> bool:
        self._show_completions()
        shown = self.query_one(CompletionList)
        if not shown.display:
            return False
        if step > 0:
            shown.action_cursor_down()
        else:
            shown.action_cursor_up()
        return True

    def on_text_area_changed(self) -> None:
        self._show_completions()

    def _show_completions(self) -> None:
        """Those of the text as it is; nothing where they were shown, or put away, before it changed."""
        text = self.text
        if text == self._completed:
            return
        self._completed = text
        found = self._complete(text) if text.startswith("/") and "\n" not in text else ()
        found = [one for one in found if one.text != text]
        self.query_one(CompletionList).show(found)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.take_completion()
        self.area.focus()


class CompletionList(OptionList, can_focus=False):
    """What the line may become."""

    completions: Sequence[Completion] = ()

    def show(self, completions: Sequence[Completion]) -> None:
        self.completions = completions
        self.display = bool(completions)
        self.clear_options()
        width = max((len(one.label) for one in completions), default=0)
        self.add_options(
            Option(Content.assemble((safe_line(one.label).ljust(width), "bold"), f"  {safe_line(one.help)}"))
            for one in completions
        )
        if completions:
            self.highlighted = 0


class ComposerText(TextArea):
    """The text area, with the keys that a chat needs."""

    BINDINGS = [
        Binding("ctrl+j,shift+enter", "new_line", "New line", show=False, id="composer.new_line"),
        Binding("enter", "send", "Send", show=False, id="composer.send"),
    ]

    @property
    def composer(self) -> Composer:
        composer = self.parent
        assert isinstance(composer, Composer)
        return composer

    def action_new_line(self) -> None:
        self.insert("\n")

    def action_send(self) -> None:
        self.composer.send()

    async def _on_key(self, event: events.Key) -> None:
        # Enter and Tab mean something else here than in a text area, whose own handler would insert them.
        if event.key == "enter":
            event.prevent_default()
        if (event.key == "tab" and self.composer.take_completion()) or (
            event.key in {"up", "down"} and self._walks(1 if event.key == "down" else -1)
        ):
            event.stop()
            event.prevent_default()
            return
        # A key with a binding would go up to the app and come back from there; characters typed behind it would overtake it.
        bound = self.screen.active_bindings.get(event.key)
        if bound is not None and bound.node is self and bound.enabled:
            event.stop()
            event.prevent_default()
            await self.run_action(bound.binding.action)

    def _walks(self, step: int) -> bool:
        """Up and Down choose a completion, or walk through the history at the first and last line."""
        if self.composer.move_completion(step):
            return True
        row = self.cursor_location[0]
        edge = 0 if step < 0 else self.document.line_count - 1
        return row == edge and self.composer.recall(step)
