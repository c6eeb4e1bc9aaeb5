"""Stored chats: found, looked at, gone on with, renamed, exported, deleted and put back; forks stand below their parents."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.text import Text
from textual import events, on
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import DataTable, Input, Static

from kvnotes_local.notebook.store.records import ChatSummary, RemovedChat, as_tree
from kvnotes_local.session.quantities import human_moment
from kvnotes_local.terminal_text import safe_line, safe_text
from kvnotes_local.tui.news import ChatOpened, ChatPreviewed, ChatRemoved, ChatsListed
from kvnotes_local.tui.screens.base import KvnotesScreen
from kvnotes_local.tui.workbench.chat_requests import OpenChat
from kvnotes_local.tui.workbench.store_requests import (
    ExportChat,
    ListChats,
    PreviewChat,
    PutChatBack,
    RemoveChat,
    RemoveOpenChat,
    RenameChat,
)


class ChatsScreen(KvnotesScreen):
    """Search, table, preview."""

    MODE = "chats"
    CSS_PATH = ["base.tcss", "chats.tcss"]
    AUTO_FOCUS = "#chats"
    BINDINGS = [
        Binding("slash", "search", "Search", id="chats.search"),
        Binding("r", "rename", "Rename", id="chats.rename"),
        Binding("e", "export", "Export", id="chats.export"),
        Binding("d,delete", "remove", "Delete", id="chats.delete"),
        Binding("u", "put_back", "Undo delete", id="chats.put_back"),
        Binding("n", "app.new_chat", "New chat", id="chats.new"),
        Binding("escape", "back", "Back", show=False, id="chats.back"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[tuple[ChatSummary, int]] = []
        self._snippets: dict[str, str] = {}
        self._removed: list[RemovedChat] = []

    def body(self) -> Iterable[Widget]:
        yield Input(placeholder="Search in what was said", id="chats-search")
        yield Input(id="chats-input")
        with Horizontal(classes="list-and-detail"):
            with Vertical(id="chats-list"):
                yield DataTable[Text](id="chats", cursor_type="row")
                yield Static(id="chats-none")
            with VerticalScroll(id="preview"):
                yield Static(id="preview-text")

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        table.add_column("chat", width=30)
        table.add_column("last used", width=16)
        table.add_column("tokens", width=7)
        table.add_column("model", width=16)
        self.query_one("#chats-input").display = False

    @on(events.ScreenResume)
    @on(ChatOpened)
    def _refresh(self) -> None:
        self.kvnotes.submit(ListChats(self.query_one("#chats-search", Input).value))

    @on(ChatsListed)
    def _show(self, news: ChatsListed) -> None:
        table = self.query_one(DataTable)
        before = self.chosen
        self._rows = as_tree(news.chats)
        self._snippets = {one.chat.id: one.snippet for one in reversed(news.found)}
        table.clear()
        for chat, depth in self._rows:
            here = "▸ " if self.session.chat is not None and chat.id == self.session.chat.id else ""
            branch = f"{'  ' * (depth - 1)}└ " if depth else ""
            table.add_row(
                Text(branch + here + safe_line(chat.title or "(nothing asked yet)", 30 - len(branch + here))),
                Text(human_moment(chat.updated)),
                Text(f"{chat.n_tokens:,}", justify="right"),
                Text(safe_line(chat.model_name, 16)),
            )
        row = next((at for at, (chat, _) in enumerate(self._rows) if before is not None and chat.id == before.id), 0)
        if self._rows:
            table.move_cursor(row=row)
        none = self.query_one("#chats-none", Static)
        none.display = not self._rows
        none.update(
            "Nothing was found." if news.query else "There are no chats yet. Ask something on the Chat screen (F2)."
        )
        if not self._rows:
            self.query_one("#preview-text", Static).update("")

    @on(DataTable.RowHighlighted)
    def _preview(self) -> None:
        if self.chosen is not None:
            self.kvnotes.submit(PreviewChat(self.chosen.id))

    @on(ChatPreviewed)
    def _show_preview(self, news: ChatPreviewed) -> None:
        if self.chosen is None or news.chat.summary.id != self.chosen.id:
            return
        summary = news.chat.summary
        lines = [f"{summary.id} · {summary.model_name}"]
        if summary.parent is not None:
            lines.append(f"forked from {summary.parent} after segment {summary.parent_segments}")
        if summary.id in self._snippets:
            lines.append(f"found: {self._snippets[summary.id]}")
        for segment in news.chat.segments:
            if segment.text:
                name = f" {segment.name}" if segment.name else ""
                text = segment.text if len(segment.text) < 600 else f"{segment.text[:600]} …"
                lines += ["", f"── {segment.kind.value}{name}{' (stopped)' if segment.stopped else ''}", text]
        self.query_one("#preview-text", Static).update(Content(safe_text("\n".join(lines))))
        self.query_one("#preview").scroll_home(animate=False)

    @on(ChatRemoved)
    def _note_removed(self, news: ChatRemoved) -> None:
        self._removed.append(news.chat)
        self.kvnotes.tell(f"{news.chat.summary.title or news.chat.summary.id} was deleted; u brings it back.")

    @property
    def chosen(self) -> ChatSummary | None:
        row = self.query_one(DataTable).cursor_row
        return self._rows[row][0] if 0 <= row < len(self._rows) else None

    # -- what users do -----------------------------------------------------------------------------------------------------

    @on(DataTable.RowSelected)
    def _open(self) -> None:
        if self.chosen is not None:
            self.kvnotes.try_idle(OpenChat(self.chosen.id))
            self.kvnotes.action_go("chat")

    @on(Input.Changed, "#chats-search")
    def _search(self) -> None:
        self._refresh()

    @on(Input.Submitted, "#chats-search")
    def _leave_search(self) -> None:
        self.query_one(DataTable).focus()

    def action_search(self) -> None:
        self.query_one("#chats-search").focus()

    def action_rename(self) -> None:
        if self.chosen is not None:
            self._ask("New title", self.chosen.title)

    def action_export(self) -> None:
        if self.chosen is not None:
            self._ask("Export to (.md or .json)", str(Path.cwd() / f"chat-{self.chosen.id}.md"))

    @on(Input.Submitted, "#chats-input")
    def _answered(self, event: Input.Submitted) -> None:
        field = event.input
        field.display = False
        self.query_one(DataTable).focus()
        if self.chosen is None or not event.value.strip():
            return
        if str(field.border_title).startswith("Export"):
            self.kvnotes.submit(ExportChat(self.chosen.id, Path(event.value.strip()).expanduser()))
        else:
            self.kvnotes.submit(RenameChat(self.chosen.id, event.value))

    def action_remove(self) -> None:
        chat = self.chosen
        if chat is None:
            return
        if self.session.chat is not None and chat.id == self.session.chat.id:
            self.kvnotes.try_idle(RemoveOpenChat(chat.id))
        else:
            self.kvnotes.submit(RemoveChat(chat.id))

    def action_put_back(self) -> None:
        if self._removed:
            self.kvnotes.submit(PutChatBack(self._removed.pop()))
        else:
            self.kvnotes.tell("Nothing was deleted.", failed=True)

    def action_back(self) -> None:
        if self.session.work is not None:
            self.kvnotes.action_stop()
        self.query_one("#chats-input").display = False
        self.query_one(DataTable).focus()

    def _ask(self, title: str, value: str) -> None:
        field = self.query_one("#chats-input", Input)
        field.border_title = title
        field.value = value
        field.display = True
        field.focus()
