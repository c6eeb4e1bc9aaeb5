"""What can be done with stored chats."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.engine.sequences.state_shelf import put_state_back, set_state_aside
from kvnotes_local.errors import KvnotesError
from kvnotes_local.notebook.store.export import chat_json, chat_markdown
from kvnotes_local.notebook.store.records import RemovedChat
from kvnotes_local.tui.news import ChatPreviewed, ChatRemoved, ChatsListed, Notice
from kvnotes_local.tui.workbench.chat_requests import open_on_desk
from kvnotes_local.tui.workbench.desk import Desk, EngineDesk, EngineRequest, FileDesk, FileRequest


@dataclass(frozen=True)
class ListChats(FileRequest):
    """List the chats, or those in which all words of ``query`` occur."""

    query: str = ""

    @property
    def what(self) -> str:
        return "Listing the chats"

    def run(self, desk: FileDesk) -> None:
        if not self.query.strip():
            desk.tell(ChatsListed(desk.store.list()))
            return
        found = desk.store.search(self.query)
        chats = tuple({one.chat.id: one.chat for one in found}.values())
        desk.tell(ChatsListed(chats, self.query, found))


@dataclass(frozen=True)
class PreviewChat(FileRequest):
    """Show what is in a chat."""

    chat: str

    @property
    def what(self) -> str:
        return "Reading a chat"

    def run(self, desk: FileDesk) -> None:
        desk.tell(ChatPreviewed(desk.store.load(self.chat)))


@dataclass(frozen=True)
class RenameChat(FileRequest):
    """Give a chat another title."""

    chat: str
    title: str

    @property
    def what(self) -> str:
        return "Renaming a chat"

    def run(self, desk: FileDesk) -> None:
        desk.store.rename(self.chat, self.title)
        desk.tell(ChatsListed(desk.store.list()))


@dataclass(frozen=True)
class RemoveChat(FileRequest):
    """Delete a chat that is not open."""

    chat: str

    @property
    def what(self) -> str:
        return "Deleting a chat"

    def run(self, desk: FileDesk) -> None:
        _remove(desk, self.chat)


@dataclass(frozen=True)
class RemoveOpenChat(EngineRequest):
    """Delete the open chat and begin a new one."""

    chat: str

    @property
    def what(self) -> str:
        return "Deleting the chat"

    def run(self, desk: EngineDesk) -> None:
        if desk.has_chat and desk.chat.id == self.chat:
            open_on_desk(desk, "new")
        _remove(desk, self.chat)


def _remove(desk: Desk, chat: str) -> None:
    removed = desk.store.remove(chat)
    set_state_aside(desk.places.cache, removed.summary.id)
    desk.tell(ChatRemoved(removed))
    desk.tell(ChatsListed(desk.store.list()))


@dataclass(frozen=True)
class PutChatBack(FileRequest):
    """Undo a deletion."""

    chat: RemovedChat

    @property
    def what(self) -> str:
        return "Putting a chat back"

    def run(self, desk: FileDesk) -> None:
        desk.store.put_back(self.chat)
        put_state_back(desk.places.cache, self.chat.summary.id)
        desk.tell(Notice(f"{self.chat.summary.title or self.chat.summary.id} is back."))
        desk.tell(ChatsListed(desk.store.list()))


@dataclass(frozen=True)
class ExportChat(FileRequest):
    """Write a chat as Markdown or JSON (by the ending of ``to``)."""

    chat: str
    to: Path

    @property
    def what(self) -> str:
        return "Exporting a chat"

    def run(self, desk: FileDesk) -> None:
        stored = desk.store.load(self.chat)
        text = chat_json(stored) if self.to.suffix == ".json" else chat_markdown(stored)
        if self.to.exists():
            raise KvnotesError(f"{self.to} exists already and was left as it is. Name another file.")
        try:
            write_atomically(self.to, text)
        except OSError as error:
            raise KvnotesError(f"{self.to} cannot be written: {error.strerror}. Name another place.") from error
        desk.tell(Notice(f"The chat was written to {self.to}."))
