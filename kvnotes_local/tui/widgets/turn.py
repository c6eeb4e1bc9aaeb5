"""One entry of the transcript: who speaks, what is said, and what can be done with it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Collapsible, Markdown, Static
from textual.widgets.markdown import MarkdownFence, MarkdownStream

from kvnotes_local.chat_format.format import PLAIN_FORMAT, ChatFormat
from kvnotes_local.chat_format.reasoning import split_reasoning
from kvnotes_local.notebook.segment import Freshness, Kind, Segment
from kvnotes_local.terminal_text import safe_line, safe_text
from kvnotes_local.tui.freshness import LOOKS, count_tokens


class TurnAction(StrEnum):
    """What can be done with an entry."""

    COPY = "copy"
    COPY_CODE = "copy code"
    EDIT = "edit"
    AGAIN = "again"
    FORK = "fork here"
    DELETE = "delete"


_KEYS = {
    TurnAction.COPY: "c",
    TurnAction.COPY_CODE: "o",
    TurnAction.EDIT: "e",
    TurnAction.AGAIN: "r",
    TurnAction.FORK: "f",
    TurnAction.DELETE: "d",
}
_ACTIONS = {
    Kind.USER: (TurnAction.COPY, TurnAction.EDIT, TurnAction.AGAIN, TurnAction.FORK, TurnAction.DELETE),
    Kind.ASSISTANT: (TurnAction.COPY, TurnAction.COPY_CODE, TurnAction.AGAIN, TurnAction.FORK, TurnAction.DELETE),
    Kind.SKILL: (TurnAction.COPY, TurnAction.FORK, TurnAction.DELETE),
    Kind.ERRATUM: (TurnAction.COPY, TurnAction.FORK, TurnAction.DELETE),
    Kind.SYSTEM: (TurnAction.COPY,),
}
_FOLDED = frozenset({Kind.SKILL, Kind.SYSTEM})


@dataclass(frozen=True)
class TurnText:
    """What an entry shows. Texts are as they came; they are made safe where they are shown."""

    kind: Kind
    name: str
    text: str
    reasoning: str = ""
    stopped: bool = False
    n_tokens: int = 0
    counts: tuple[tuple[Freshness, int], ...] = ()

    @classmethod
    def of(cls, segment: Segment) -> TurnText:
        counts = tuple((one, n) for one, n in count_tokens(segment.runs).items() if n)
        return cls(
            segment.kind,
            segment.name,
            segment.text,
            segment.reasoning,
            segment.stopped,
            segment.n_tokens,
            counts,
        )


class Turn(Vertical, can_focus=True):
    """An entry at segment ``index`` of the chat. A click or the arrow keys choose it."""

    BINDINGS = [
        Binding("c", "turn('copy')", "Copy", show=False, id="turn.copy"),
        Binding("o", "turn('copy code')", "Copy code", show=False, id="turn.copy_code"),
        Binding("e", "turn('edit')", "Edit", show=False, id="turn.edit"),
        Binding("r", "turn('again')", "Again", show=False, id="turn.again"),
        Binding("f", "turn('fork here')", "Fork", show=False, id="turn.fork"),
        Binding("d,delete", "turn('delete')", "Delete", show=False, id="turn.delete"),
        Binding("x,enter", "fold", "Fold", show=False, id="turn.fold"),
    ]

    @dataclass
    class Asked(Message):
        """The user wants ``action`` for the entry at segment ``index``."""

        index: int
        action: TurnAction

    def __init__(
        self, index: int, content: TurnText, *, speaker: str = "Assistant", chat_format: ChatFormat = PLAIN_FORMAT
    ) -> None:
        super().__init__(classes=f"turn {content.kind.value}")
        self.index = index
        self.content = content
        self._speaker = speaker
        self._format = chat_format
        self._stream: MarkdownStream | None = None
        self._streamed = ""
        self._shown = ""

    def compose(self) -> ComposeResult:
        yield Static(self._title(), classes="turn-title")
        if self.content.kind is Kind.ASSISTANT:
            yield Collapsible(
                Static(Content(safe_text(self.content.reasoning)), classes="reasoning"),
                title="Reasoning",
                collapsed=True,
            )
            yield Markdown(safe_text(self.content.text), open_links=False)
        elif self.content.kind is Kind.USER:
            yield Static(Content(safe_text(self.content.text)), classes="said")
        elif self.content.kind in _FOLDED:
            yield Collapsible(
                Static(Content(safe_text(self.content.text)), classes="said"),
                title="Text (x unfolds)",
                collapsed=True,
            )
        yield ActionLine(self.content.kind)

    def on_mount(self) -> None:
        self._show_reasoning()

    # -- an answer that is being given -----------------------------------------------------------------------------------

    async def write(self, text: str) -> None:
        """More of the answer."""
        self._streamed += text
        spoken = split_reasoning(self._streamed, self._format)
        if spoken.reasoning != self.content.reasoning:
            self.content = TurnText(self.content.kind, self.content.name, "", spoken.reasoning)
            self.query_one(".reasoning", Static).update(Content(safe_text(spoken.reasoning)))
            self._show_reasoning(thinking=spoken.thinking)
        elif self.content.reasoning and not spoken.thinking:
            self._show_reasoning()
        new = safe_text(spoken.said[len(self._shown) :])
        if new:
            self._shown = spoken.said
            if self._stream is None:
                self._stream = Markdown.get_stream(self.query_one(Markdown))
            await self._stream.write(new)

    async def show(self, index: int, content: TurnText) -> None:
        """Show this entry instead, as a whole."""
        self.index = index
        if self._stream is not None:
            stream, self._stream = self._stream, None
            await stream.stop()
        before, self.content = self.content, content
        self.query_one(".turn-title", Static).update(self._title())
        if content.kind is Kind.ASSISTANT:
            markdown = self.query_one(Markdown)
            if self._streamed or content.text != before.text:
                await markdown.update(safe_text(content.text))
            self.query_one(".reasoning", Static).update(Content(safe_text(content.reasoning)))
            self._show_reasoning()
        elif content.text != before.text and self.query(".said"):
            self.query_one(".said", Static).update(Content(safe_text(content.text)))
        self._streamed = self._shown = ""

    # -- what can be done -------------------------------------------------------------------------------------------------

    def action_turn(self, name: str) -> None:
        action = TurnAction(name)
        if action in _ACTIONS[self.content.kind]:
            self.post_message(self.Asked(self.index, action))

    def action_fold(self) -> None:
        for fold in self.query(Collapsible):
            fold.collapsed = not fold.collapsed

    @property
    def code(self) -> str:
        """The code blocks of the entry, one after the other."""
        return "\n\n".join(fence.code.rstrip("\n") for fence in self.query(MarkdownFence))

    def _title(self) -> Content:
        content = self.content
        match content.kind:
            case Kind.USER:
                return Content("You")
            case Kind.SYSTEM:
                return Content(f"System text · {content.n_tokens:,} tokens")
            case Kind.SKILL:
                signs = [
                    Content.assemble((LOOKS[one].sign, LOOKS[one].style), f" {n:,} {one.value}")
                    for one, n in content.counts
                ]
                return Content(" · ").join([Content(f"Skill {safe_line(content.name)}"), *signs])
            case Kind.ERRATUM:
                return Content(f"Correction: {safe_line(content.text)}")
            case _:
                return Content(safe_line(self._speaker) + (" (stopped)" if content.stopped else ""))

    def _show_reasoning(self, *, thinking: bool = False) -> None:
        if self.content.kind is not Kind.ASSISTANT:
            return
        fold = self.query_one(Collapsible)
        words = len(self.content.reasoning.split())
        fold.display = bool(self.content.reasoning)
        fold.title = f"Thinking … {words:,} words" if thinking else f"Reasoning, {words:,} words"


class ActionLine(Static):
    """The keys of an entry, for the mouse as well; shown while the entry is chosen."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(classes="turn-actions")
        self._kind = kind

    def render(self) -> Content:
        parts = [
            Content.assemble((f"{_KEYS[action]}", "bold"), f" {action.value}").stylize(f"@click=turn('{action.value}')")
            for action in _ACTIONS[self._kind]
        ]
        return Content("   ").join(parts)

    def action_turn(self, name: str) -> None:
        turn = self.parent
        assert isinstance(turn, Turn)
        turn.action_turn(name)
