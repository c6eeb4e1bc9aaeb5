"""What was said in the open chat, as it is said."""

from __future__ import annotations

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from kvnotes_local.chat_format.format import PLAIN_FORMAT, ChatFormat
from kvnotes_local.notebook.segment import Kind, Segment
from kvnotes_local.tui.views import ChatView
from kvnotes_local.tui.widgets.turn import Turn, TurnText

SHOWN_AT_ONCE = 60
"""Entries that are put on the screen; earlier ones come on demand, since each is a widget."""


class Transcript(VerticalScroll, can_focus=False):
    """Entries in order. It keeps to the end as long as nobody scrolls up."""

    BINDINGS = [
        Binding("up,k", "move(-1)", "Previous", show=False, id="transcript.previous"),
        Binding("down,j", "move(1)", "Next", show=False, id="transcript.next"),
        Binding("home,g", "ends(0)", "First", show=False, id="transcript.first"),
        Binding("end,G", "ends(-1)", "Last", show=False, id="transcript.last"),
    ]

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self._speaker = "Assistant"
        self._format = PLAIN_FORMAT
        self._limit = SHOWN_AT_ONCE
        self._chat: ChatView | None = None
        self._answer: Turn | None = None

    def on_mount(self) -> None:
        self.anchor()

    @property
    def turns(self) -> list[Turn]:
        return list(self.query_children(Turn))

    def speaker(self, name: str, chat_format: ChatFormat) -> None:
        """Who answers from now on, and in which format."""
        self._speaker, self._format = name, chat_format

    async def show(self, chat: ChatView | None) -> None:
        """Show a chat as it is now; entries that did not change stay as they are."""
        if chat is None or self._chat is None or chat.id != self._chat.id:
            self._limit = SHOWN_AT_ONCE
            await self.remove_children()
            self.anchor()
        self._chat = chat
        wanted = _entries(chat.segments) if chat is not None else []
        hidden = max(0, len(wanted) - self._limit)
        await self._show_earlier(hidden)
        await self._match(wanted[hidden:])
        self._answer = None

    async def ask(self, text: str, at: int) -> None:
        """A question was put at segment ``at``; what stood there goes, and an answer is awaited."""
        kept = [turn for turn in self.turns if turn.index < at]
        for turn in self.turns[len(kept) :]:
            await turn.remove()
        self._answer = self._turn(at + 1, TurnText(Kind.ASSISTANT, "", ""))
        await self.mount(self._turn(at, TurnText(Kind.USER, "", text)), self._answer)
        self.anchor()

    async def write(self, text: str) -> None:
        """More of the answer."""
        if self._answer is not None:
            await self._answer.write(text)

    def action_move(self, step: int) -> None:
        turns = self.turns
        focused = next((at for at, turn in enumerate(turns) if turn.has_focus), None)
        if turns:
            at = len(turns) - 1 if focused is None else min(len(turns) - 1, max(0, focused + step))
            turns[at].focus()

    def action_ends(self, at: int) -> None:
        if self.turns:
            self.turns[at].focus()

    def choose(self, index: int) -> None:
        """Focus the entry at segment ``index``."""
        for turn in self.turns:
            if turn.index == index:
                turn.focus()

    async def _match(self, wanted: list[tuple[int, TurnText]]) -> None:
        turns = self.turns
        for at, (index, content) in enumerate(wanted):
            if at < len(turns) and turns[at].content.kind is content.kind:
                if turns[at].content != content or turns[at].index != index:
                    await turns[at].show(index, content)
                continue
            for turn in turns[at:]:
                await turn.remove()
            turns = turns[:at]
            turns += (new := [self._turn(*entry) for entry in wanted[at:]])
            await self.mount(*new)
            return
        for turn in turns[len(wanted) :]:
            await turn.remove()

    async def _show_earlier(self, hidden: int) -> None:
        for line in self.query_children(EarlierLine):
            if line.hidden == hidden:
                return
            await line.remove()
        if hidden:
            await self.mount(EarlierLine(hidden), before=0)

    async def on_earlier_line_wanted(self, _: EarlierLine.Wanted) -> None:
        self._limit += SHOWN_AT_ONCE
        await self.show(self._chat)

    def _turn(self, index: int, content: TurnText) -> Turn:
        return Turn(index, content, speaker=self._speaker, chat_format=self._format)


class EarlierLine(Static, can_focus=True):
    """Stands for entries that are not on the screen; Enter or a click brings more of them."""

    BINDINGS = [Binding("enter", "more", "Show earlier")]

    class Wanted(Message):
        """More entries are wanted."""

    def __init__(self, hidden: int) -> None:
        super().__init__(Content(f"… {hidden:,} earlier entries: Enter shows more"), classes="earlier")
        self.hidden = hidden

    def action_more(self) -> None:
        self.post_message(self.Wanted())

    def on_click(self) -> None:
        self.action_more()


def _entries(segments: tuple[Segment, ...]) -> list[tuple[int, TurnText]]:
    """What of a chat is shown; a beginning without a text (BOS only) is not."""
    return [
        (index, TurnText.of(segment))
        for index, segment in enumerate(segments)
        if segment.text or segment.reasoning or segment.kind is not Kind.SYSTEM
    ]
