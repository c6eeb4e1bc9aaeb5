"""What lies on the workbench: a model, the open chat, the skills. Only the thread of its lane touches a desk."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kvnotes_local.contract.generation import Sampling
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.contract.protocol import Engine
from kvnotes_local.errors import Cancelled, KvnotesError, UsageError
from kvnotes_local.notebook.store.chats import ChatStore
from kvnotes_local.notebook.store.database import ChatStoreError
from kvnotes_local.notebook.store.params import DEFAULT_MAX_TOKENS
from kvnotes_local.session.places import Places
from kvnotes_local.tui.news import Failure, News, SaferOffered, WorkProgressed, WorkStep
from kvnotes_local.tui.views import ChatView
from kvnotes_local.tui.workbench.crash_watch import CrashWatch

if TYPE_CHECKING:
    from kvnotes_local.notebook.proof import PrefillSpeed
    from kvnotes_local.notebook.stored_chat import StoredChat
    from kvnotes_local.skills.artifact_store import ArtifactStore
    from kvnotes_local.skills.compiler import SkillCompiler
    from kvnotes_local.skills.library import SkillLibrary
    from kvnotes_local.skills.verdicts import VerdictStore

LoadProgress = Callable[[float], bool]


class OpenEngine(Protocol):
    """Loads a model; ``progress`` (0 … 1) returns False to cancel, ``note`` is told in a sentence what users should know."""

    def __call__(
        self, path: Path, params: EngineParams, *, progress: LoadProgress, note: Callable[[str], None]
    ) -> Engine: ...


@dataclass(frozen=True)
class ChatDefaults:
    """How answers of new chats are drawn."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = DEFAULT_MAX_TOKENS


@dataclass
class Loaded:
    """A loaded model with what skills need. ``path`` and ``params``: as it was asked for. ``speed``: what is known of how fast
    it reads."""

    path: Path
    params: EngineParams
    engine: Engine
    library: SkillLibrary
    compiler: SkillCompiler
    verdicts: VerdictStore
    speed: PrefillSpeed


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
            self._store = ChatStore(self.places.chats)
        return self._store

    @property
    def artifacts(self) -> ArtifactStore:
        from kvnotes_local.skills.artifact_store import ArtifactStore

        return ArtifactStore(self.places.artifacts)

    def library(self) -> SkillLibrary:
        """The skills as they are on disk now."""
        from kvnotes_local.skills.library import SkillLibrary

        if self.places.only_given:
            return SkillLibrary(self.places.skills_dirs)
        return SkillLibrary.default(self.places.skills_dirs)

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
        self.loaded: Loaded | None = None
        self.defaults = ChatDefaults()
        self.crashes = CrashWatch()
        self._spare: list[Engine] = []
        self._chat: StoredChat | None = None

    @property
    def model(self) -> Loaded:
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

    @contextmanager
    def open_other(self, **changes: object) -> Iterator[Engine]:
        """Another engine of the loaded model, with changed EngineParams, for as long as it is needed."""
        model = self.model
        params = replace(model.params, **changes)  # type: ignore[arg-type]
        engine = self.open_engine(
            model.path, params, progress=lambda fraction: not self.stop.is_set(), note=lambda text: None
        )
        self._spare.append(engine)
        try:
            yield engine
        finally:
            self._spare.remove(engine)
            engine.close()

    def cancel(self) -> None:
        """Stop what the engines do, from any thread."""
        loaded = self.loaded
        for engine in [*self._spare, *([loaded.engine] if loaded is not None else [])]:
            engine.cancel()

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
        from kvnotes_local.skills.speeds import SpeedMemory

        try:
            self.leave_chat()
        finally:
            if self.loaded is not None:
                loaded, self.loaded = self.loaded, None
                SpeedMemory(self.places.cache).learn_prefill(loaded.engine.info.fingerprint, loaded.speed.measured)
                loaded.engine.close()

    def close(self) -> None:
        try:
            self.unload()
        finally:
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
