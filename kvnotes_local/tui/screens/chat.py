"""The chat: what was said, where one writes, and what the cache holds."""

from __future__ import annotations

from collections.abc import Iterable

from textual import events, on
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Button, Static, TextArea

from kvnotes_local.notebook.segment import Kind
from kvnotes_local.terminal_text import safe_line
from kvnotes_local.tui.news import (
    AnswerEnded,
    AnswerText,
    ChatChanged,
    ChatOpened,
    FieldChanged,
    LineBegun,
    ModelGone,
    ModelReady,
    News,
    QuestionAsked,
    WorkEnded,
)
from kvnotes_local.tui.screens.base import KvnotesScreen
from kvnotes_local.tui.views import ChatView
from kvnotes_local.tui.widgets.cache_strip import CacheStrip
from kvnotes_local.tui.widgets.composer import Composer, ComposerText
from kvnotes_local.tui.widgets.notebook_panel import FieldsTable, NotebookPanel, SegmentList
from kvnotes_local.tui.widgets.status_bar import StatusBar
from kvnotes_local.tui.widgets.transcript import Transcript
from kvnotes_local.tui.widgets.turn import Turn, TurnAction
from kvnotes_local.tui.workbench.answer_requests import Ask, Resend
from kvnotes_local.tui.workbench.chat_requests import DeleteSegment, DropSkill, ForkChat, SetField

PANEL_FROM = 100
"""Columns from which on the notebook panel is shown unless it was put away."""


class Welcome(Vertical):
    """Shown as long as no model is loaded: what to do, with one key."""

    def compose(self) -> Iterable[Widget]:
        yield Static(id="welcome-text")
        yield Button("Start", id="welcome-start", variant="primary")

    def show(self, text: str, start: str | None) -> None:
        """``start``: what the button says; None where there is nothing to start."""
        self.query_one("#welcome-text", Static).update(Content(text))
        button = self.query_one(Button)
        button.display = start is not None
        if start is not None:
            button.label = start


class ChatScreen(KvnotesScreen):
    """Transcript, composer, notebook panel, cache strip, proof."""

    MODE = "chat"
    CSS_PATH = ["base.tcss", "chat.tcss"]
    AUTO_FOCUS = "#composer-text"
    BINDINGS = [
        Binding("escape", "leave", "Stop / back", priority=True, id="chat.stop"),
        Binding("ctrl+b", "panel", "Notebook", id="chat.notebook"),
        Binding("ctrl+n", "app.new_chat", "New chat", id="chat.new"),
        Binding("alt+z", "app.undo", "Undo", id="chat.undo"),
        Binding("alt+y", "app.redo", "Redo", show=False, id="chat.redo"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._panel_wanted: bool | None = None
        self._sent: dict[int, Composer.Sent] = {}

    def body(self) -> Iterable[Widget]:
        yield CacheStrip(id="strip")
        with Horizontal(id="middle"):
            with Vertical(id="left"):
                yield Welcome(id="welcome")
                yield Transcript()
            yield NotebookPanel()

    def foot(self) -> Iterable[Widget]:
        yield Composer(self.kvnotes.complete)
        yield StatusBar(id="status")

    async def on_mount(self) -> None:
        if self.kvnotes.draft:
            self.query_one(Composer).write(self.kvnotes.draft)
        self._tell_speaker()
        await self._show(self.session.chat)
        self._show_status()

    def on_resize(self, event: events.Resize) -> None:
        self._place_panel(event.size.width)

    # -- news --------------------------------------------------------------------------------------------------------------

    @on(News)
    def _show_status(self) -> None:
        self.query_one(StatusBar).session = self.session
        self.query_one(FieldsTable).show_level(self.kvnotes.settings.edit_level)
        self._show_welcome()

    @on(ModelReady)
    def _tell_speaker(self) -> None:
        info = self.session.info
        if info is not None:
            self.query_one(Transcript).speaker(info.name, info.chat_format)

    @on(ModelGone)
    async def _empty(self) -> None:
        await self._show(None)

    @on(ChatOpened)
    async def _opened(self, news: ChatOpened) -> None:
        await self._show(news.chat)

    @on(ChatChanged)
    async def _changed(self, news: ChatChanged) -> None:
        if news.what == "ask":  # the answer has begun: the transcript streams it
            self._show_cache(news.chat)
        else:
            await self._show(news.chat)

    @on(QuestionAsked)
    async def _asked(self, news: QuestionAsked) -> None:
        await self.query_one(Transcript).ask(news.text, news.at)

    @on(AnswerText)
    async def _stream(self, news: AnswerText) -> None:
        await self.query_one(Transcript).write(news.text)

    @on(AnswerEnded)
    async def _ended(self, news: AnswerEnded) -> None:
        await self._show(news.chat)

    @on(LineBegun)
    def _begin_line(self, news: LineBegun) -> None:
        self.compose_text(news.text, news.at)

    @on(FieldChanged)
    def _field_changed(self, news: FieldChanged) -> None:
        self.query_one(FieldsTable).show_result(news.result)

    @on(WorkEnded)
    def _give_back(self, news: WorkEnded) -> None:
        """What was written and could not be done stands in the composer again, unless something else was written."""
        sent = self._sent.pop(news.id, None)
        composer = self.query_one(Composer)
        if sent is not None and not news.ok and not composer.text and not self._was_asked(sent.text):
            composer.give_back(sent)

    def _was_asked(self, text: str) -> bool:
        """Does the chat end with this question, and with what was said of its answer?"""
        chat = self.session.chat
        segments = chat.segments if chat is not None else ()
        return any(segment.kind is Kind.USER and segment.text == text for segment in segments[-2:])

    async def _show(self, chat: ChatView | None) -> None:
        await self.query_one(Transcript).show(chat)
        self._show_cache(chat)

    def _show_cache(self, chat: ChatView | None) -> None:
        self.query_one(NotebookPanel).show(chat)
        segments = chat.segments if chat is not None else ()
        self.query_one(CacheStrip).runs = tuple(run for segment in segments for run in segment.runs)

    def _show_welcome(self) -> None:
        welcome, session = self.query_one(Welcome), self.session
        chat = session.chat
        empty = chat is None or all(segment.kind is Kind.SYSTEM for segment in chat.segments)
        welcome.display = empty and not session.answering
        self.query_one(Transcript).display = not welcome.display
        text, start = self.kvnotes.welcome()
        welcome.show(text, start)

    # -- what users do -----------------------------------------------------------------------------------------------------

    @on(TextArea.Changed, "#composer-text")
    def _keep_draft(self) -> None:
        self.kvnotes.draft = self.query_one(Composer).text

    @on(Composer.Sent)
    def _send(self, sent: Composer.Sent) -> None:
        """What is refused comes back to the composer; so does what fails later."""
        app = self.kvnotes
        before = app.workbench.n_submitted
        if not app.attempt(lambda: self._carry_out(sent)):
            self.query_one(Composer).give_back(sent)
        elif app.workbench.n_submitted > before:
            self._sent[before + 1] = sent

    def _carry_out(self, sent: Composer.Sent) -> None:
        if sent.text.startswith("/") and sent.editing is None:
            self.kvnotes.run_command(sent.text)
            return
        if self.session.chat is None or self.session.answering:
            self.kvnotes.need_idle()  # anything else that is under way ends first: the question waits for it
        self.kvnotes.need_chat()
        self.kvnotes.submit(Ask(sent.text) if sent.editing is None else Resend(sent.editing, sent.text))

    @on(Turn.Asked)
    def _turn(self, asked: Turn.Asked) -> None:
        chat = self.session.chat
        if chat is None or not 0 <= asked.index < len(chat.segments):
            return
        segment = chat.segments[asked.index]
        match asked.action:
            case TurnAction.COPY:
                self.kvnotes.copy(segment.text, "The text")
            case TurnAction.COPY_CODE:
                code = "\n\n".join(turn.code for turn in self.query_one(Transcript).turns if turn.index == asked.index)
                self.kvnotes.copy(code, "The code")
            case TurnAction.EDIT:
                self.query_one(Composer).write(segment.text, editing=asked.index)
            case TurnAction.AGAIN:
                at = asked.index if segment.kind is Kind.USER else _question_before(chat, asked.index)
                if at is None:
                    self.kvnotes.tell("No question stands before this answer.", failed=True)
                else:
                    self.kvnotes.try_idle(Resend(at))
            case TurnAction.FORK:
                self.kvnotes.try_idle(ForkChat(asked.index + 1))
            case TurnAction.DELETE:
                self._remove(asked.index)

    @on(SegmentList.Chosen)
    def _choose(self, chosen: SegmentList.Chosen) -> None:
        self.query_one(Transcript).choose(chosen.index)

    @on(SegmentList.RemoveAsked)
    def _remove_segment(self, asked: SegmentList.RemoveAsked) -> None:
        self._remove(asked.index)

    @on(SegmentList.InsertAsked)
    def _insert(self, asked: SegmentList.InsertAsked) -> None:
        self.compose_text(f"/skill  before {asked.index}", len("/skill "))

    @on(FieldsTable.Changed)
    def _set_field(self, changed: FieldsTable.Changed) -> None:
        self.kvnotes.try_idle(SetField(changed.name, changed.value, changed.level))

    @on(FieldsTable.LevelAsked)
    def _next_level(self) -> None:
        self.kvnotes.next_edit_level()

    @on(Composer.NothingToSend)
    @on(Button.Pressed, "#welcome-start")
    def _start(self) -> None:
        self.kvnotes.start_model()

    def compose_text(self, text: str, at: int | None = None) -> None:
        """Put a text into the composer, to be completed by the user at column ``at`` (None: at its end)."""
        self.query_one(Composer).write(text)
        if at is not None:
            self.query_one(ComposerText).move_cursor((0, at))

    def action_leave(self) -> None:
        """Esc: stop what runs, else put away what is open, else go to the composer."""
        if self.session.work is not None:
            self.kvnotes.action_stop()
            return
        composer = self.query_one(Composer)
        if composer.hide_completions() or self.query_one(FieldsTable).leave_input() or composer.stop_editing():
            return
        self.query_one(ComposerText).focus()

    def action_panel(self) -> None:
        self._panel_wanted = not self.query_one(NotebookPanel).display
        self._place_panel(self.size.width)

    def _place_panel(self, width: int) -> None:
        wanted = width >= PANEL_FROM if self._panel_wanted is None else self._panel_wanted
        self.query_one(NotebookPanel).display = wanted

    def _remove(self, index: int) -> None:
        chat = self.session.chat
        if chat is None:
            return
        segment = chat.segments[index]
        if segment.kind is Kind.SYSTEM:
            self.kvnotes.tell(
                "The system text cannot be deleted; /system TEXT puts another one in its place.", failed=True
            )
        elif segment.kind is Kind.SKILL:
            self.kvnotes.try_idle(DropSkill(segment.name))
        else:
            self.kvnotes.try_idle(DeleteSegment(index))
            self.kvnotes.tell(f"Deleted: {safe_line(segment.text, 40)}. Alt+Z or /undo brings it back.")


def _question_before(chat: ChatView, index: int) -> int | None:
    return next((at for at in range(index - 1, -1, -1) if chat.segments[at].kind is Kind.USER), None)
