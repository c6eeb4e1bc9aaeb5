"""What lies on the workbench: a model, the open chat, the skills. Only the thread of its lane touches a desk."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvnotes_local.contract.generation import Sampling
from kvnotes_local.engine.sequences.state_shelf import forget_states_aside
from kvnotes_local.errors import Cancelled, KvnotesError, UsageError
from kvnotes_local.notebook.store.chats import ChatStore
from kvnotes_local.notebook.store.database import ChatStoreError
from kvnotes_local.notebook.store.params import DEFAULT_MAX_TOKENS
from kvnotes_local.session.opening import OpenEngine
from kvnotes_local.session.places import Places
from kvnotes_local.tui.news import Failure, News, SaferOffered, WorkProgressed, WorkStep
from kvnotes_local.tui.views import ChatView
from kvnotes_local.tui.workbench.crash_watch import CrashWatch

if TYPE_CHECKING:
    from kvnotes_local.notebook.stored_chat import StoredChat
    from kvnotes_local.session.session import Session


@dataclass(frozen=True)
class ChatDefaults:
    """How answers of new chats are drawn."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = DEFAULT_MAX_TOKENS


class Desk:
    """A place where requests are carried out, one after the other, in a thread of its own.

    ``tell`` reports to the screens. ``stop`` is set when the user wants what is running to stop.
    """

    def __init__(self, places: Places, tell: Callable[[News], None]) -> None:
        self.places = places
        self.tell = tell
        self.stop = threading.Event()
        self._store: ChatStore | None = None

    @property
    def store(self) -> ChatStore:
        """The chats, through a connection of this desk's own."""
        if self._store is None:
            self._store = self.places.chat_store()
        return self._store

    def failed(self, what: str, error: KvnotesError) -> None:
        """``what`` was asked for could not be done."""
        self.tell(Failure(what, str(error)))

    def done(self, what: str) -> None:
        """``what`` was asked for is done."""

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


class FileDesk(Desk):
    """For what needs files only: listing, searching, exporting. It is never kept waiting by the engine."""


class EngineDesk(Desk):
    """For what needs the model."""

    def __init__(self, places: Places, tell: Callable[[News], None], open_engine: OpenEngine) -> None:
        super().__init__(places, tell)
        self.open_engine = open_engine
        forget_states_aside(places.cache)  # of a program that was killed
        self.loaded: Session | None = None
        self.defaults = ChatDefaults()
        self.crashes = CrashWatch()
        self._chat: StoredChat | None = None

    @property
    def model(self) -> Session:
        """Raises UsageError when none is loaded."""
        if self.loaded is None:
            raise UsageError("No model is loaded. Choose one on the Models screen (F5).")
        return self.loaded

    @property
    def chat(self) -> StoredChat:
        """The open chat. Raises UsageError when there is none."""
        if self._chat is None:
            raise UsageError("No chat is open. Load a model on the Models screen (F5) first.")
        return self._chat

    @chat.setter
    def chat(self, chat: StoredChat) -> None:
        self._chat = chat

    @property
    def has_chat(self) -> bool:
        return self._chat is not None

    @property
    def is_stored(self) -> bool:
        """Is the open chat in the store? A new one is there from its first change on."""
        try:
            self.store.find(self.chat.id)
        except ChatStoreError:
            return False
        return True

    def failed(self, what: str, error: KvnotesError) -> None:
        super().failed(what, error)
        info = self.loaded.engine.info if self.loaded is not None else None
        held = self.chat.notebook.tokens if self.has_chat else ()
        offer = self.crashes.after(what, error, n_ctx=info.n_ctx if info is not None else 0, n_held=len(held))
        if offer is not None:
            self.tell(SaferOffered(offer))

    def done(self, what: str) -> None:
        self.crashes.done(what)

    def progress(self, done: int, total: int) -> None:
        """A progress callback for the layers below."""
        self.tell(WorkProgressed(done, total))
        if self.stop.is_set() and self.loaded is not None:
            self.loaded.engine.cancel()  # stopping was asked for before this part of the work began

    def step(self, what: str) -> None:
        """Told by the layers below what is done now. Raises Cancelled when the user wants to stop."""
        if self.stop.is_set():
            raise Cancelled("Stopped.")
        self.tell(WorkStep(what))

    def cancel(self) -> None:
        """Stop what the engines do, from any thread."""
        loaded = self.loaded
        if loaded is not None:
            loaded.cancel()

    def view(self) -> ChatView:
        """The open chat as the screens see it."""
        chat = self.chat
        notebook = chat.notebook
        title = next((segment.text for segment in notebook.segments if segment.kind == "user"), "")
        return ChatView(chat.id, title, notebook.segments, notebook.fields, chat.params, self.is_stored)

    def leave_chat(self) -> bool:
        """Save the open chat's state for the next time; False where there was no room for it."""
        if self._chat is None:
            return True
        chat, self._chat = self._chat, None
        return chat.leave()

    def unload(self) -> None:
        """Leave the chat and give the model back."""
        try:
            self.leave_chat()
        finally:
            if self.loaded is not None:
                loaded, self.loaded = self.loaded, None
                loaded.close()

    def close(self) -> None:
        try:
            self.unload()
        finally:
            forget_states_aside(self.places.cache)
            super().close()


@dataclass(frozen=True)
class Request(ABC):
    """Something to be done by the workbench. ``what`` names it in words, as in "Answering"."""

    @property
    @abstractmethod
    def what(self) -> str: ...


@dataclass(frozen=True)
class EngineRequest(Request):
    """A request that needs the model."""

    @abstractmethod
    def run(self, desk: EngineDesk) -> None:
        """Raises KvnotesError."""


@dataclass(frozen=True)
class FileRequest(Request):
    """A request that needs files only."""

    @abstractmethod
    def run(self, desk: FileDesk) -> None:
        """Raises KvnotesError."""
