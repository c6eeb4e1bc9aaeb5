"""A chat that is stored as it grows: new, gone on with, or forked from another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kvnotes_local.contract.generation import Sampling
from kvnotes_local.contract.model_info import ModelInfo
from kvnotes_local.contract.protocol import Engine
from kvnotes_local.errors import UsageError
from kvnotes_local.notebook.listening import OnText
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.on_full import OnFull
from kvnotes_local.notebook.proof import PrefillSpeed
from kvnotes_local.notebook.segment import Segment
from kvnotes_local.notebook.store.chats import ChatStore
from kvnotes_local.notebook.store.params import ChatParams
from kvnotes_local.notebook.store.records import ChatSummary, new_chat_id
from kvnotes_local.notebook.working_chat import Keeper
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary

NEW = "new"

NOT_SAVED = "The chat's state was not saved for lack of room; next time it is read again."
"""What to say where ``leave`` had no room."""

NewChat = Callable[[], tuple[str, str, ChatParams]]
"""Gives name and fingerprint of the model, and the parameters, at the moment when a new chat is stored."""


class Committer(Keeper):
    """Stores the changes of one chat, as long as no other program changes it. ``last``: its last operation as we know it, after
    which it was ``stored``. Only segments that are others than then are looked at: chats may be long.

    ``new``: what a chat that is not stored yet begins with; it is stored with its first change, so that one whose first change is
    refused leaves nothing behind.
    """

    def __init__(
        self, store: ChatStore, chat: str, last: int, stored: tuple[Segment, ...], new: NewChat | None = None
    ) -> None:
        self._store = store
        self._chat = chat
        self._last = last
        self._stored = stored
        self._new = new

    def check(self) -> None:
        if self._new is None:
            self._store.check_unchanged(self._chat, self._last)

    def store(self, segments: tuple[Segment, ...], what: str) -> None:
        pairs = enumerate(zip(self._stored, segments, strict=False))
        n_same = next((i for i, (a, b) in pairs if a is not b), min(len(self._stored), len(segments)))
        new = None if self._new is None else self._new()
        self._last = self._store.save(self._chat, segments, what, after=self._last, n_same=n_same, new=new)
        self._stored, self._new = segments, None


@dataclass
class StoredChat:
    """A notebook whose changes are committed to the store under ``id``; a new chat is in the store from its first change on.

    ``restored``: None for a new chat; True where its saved state was loaded, False where it was made anew from artifacts
    and text.
    """

    id: str
    notebook: Notebook
    params: ChatParams
    restored: bool | None
    store: ChatStore

    def change_params(self, params: ChatParams) -> None:
        """Keep other parameters with the chat from now on."""
        if params != self.params:
            self.params = params
            self.store.set_params(self.id, params)
        self.notebook.on_full = params.on_full

    def fork(self, at: int | None = None) -> StoredChat:
        """A stored chat of its own that begins like this one, up to segment ``at``; cells are shared, nothing is copied."""
        place = len(self.notebook.segments) if at is None else at
        twin = self.notebook.fork(at)
        chat = self.store.fork(self.id, place)
        twin.keeper = Committer(self.store, chat, self.store.last_operation(chat), twin.segments)
        return StoredChat(chat, twin, self.params, None, self.store)

    def leave(self) -> bool:
        """Save the state for the next time and give the sequence back; False where there was no room for it."""
        return self.notebook.park(self.id, on_disk=True)


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """How a chat is opened. ``library`` and ``compiler``: for skills. ``system`` and ``values`` (of its fields): of a new chat.
    ``on_full``: None for what the chat says, which is to drop the oldest turns unless it was told otherwise. ``speed``: what is
    known of how fast the engine reads."""

    library: SkillLibrary | None = None
    compiler: SkillCompiler | None = None
    system: str | None = None
    values: Mapping[str, str] | None = None
    on_notice: OnText | None = None
    on_full: OnFull | None = None
    speed: PrefillSpeed | None = None

    def notebook(self, engine: Engine, keeper: Keeper | None = None) -> Notebook:
        """A new chat; nobody stores it unless ``keeper`` does."""
        return Notebook(
            engine,
            library=self.library,
            compiler=self.compiler,
            system=self.system,
            values=self.values,
            on_notice=self.on_notice,
            on_full=self.on_full or OnFull.DROP_OLDEST,
            keeper=keeper,
            speed=self.speed,
        )


_PLAIN = ChatOptions()


def open_chat(store: ChatStore, engine: Engine, chat: str, options: ChatOptions = _PLAIN) -> StoredChat:
    """A new chat (``"new"``) or the stored one with this id. Raises ChatStoreError, UsageError for another model's chat."""
    if chat == NEW:
        return _new_chat(store, engine, options)
    stored = store.load(chat)
    summary = stored.summary
    check_model(summary, engine.info)
    if options.system is not None:
        raise UsageError(f"The chat {summary.id} has its system text already. Start a new one for another.")
    params = replace(stored.params, on_full=options.on_full or stored.params.on_full)
    notebook, restored = Notebook.resume(
        engine,
        stored.segments,
        summary.id,
        parent=summary.parent,
        library=options.library,
        compiler=options.compiler,
        on_notice=options.on_notice,
        on_full=params.on_full,
        keeper=Committer(store, summary.id, stored.last_operation, stored.segments),
        speed=options.speed,
    )
    opened = StoredChat(summary.id, notebook, stored.params, restored, store)
    opened.change_params(params)
    return opened


def check_model(summary: ChatSummary, info: ModelInfo) -> None:
    """Raises UsageError for a chat that was held with another model than the loaded one."""
    if summary.model_fingerprint == info.fingerprint:
        return
    if info.name == summary.model_name:
        raise UsageError(
            f"The chat {summary.id} was held with another {info.name}, whose file has other content; its tokens mean something "
            "else to this one. Give the file that it was held with as --model FILE."
        )
    raise UsageError(
        f"The chat {summary.id} was held with {summary.model_name}; its tokens mean something else to {info.name}. "
        f"Use --model {summary.model_name}."
    )


def _new_chat(store: ChatStore, engine: Engine, options: ChatOptions) -> StoredChat:
    info = engine.info
    chat = new_chat_id()
    on_full = options.on_full or OnFull.DROP_OLDEST
    params = ChatParams.of(info, Sampling(), ChatParams().max_tokens, on_full)
    committer = Committer(store, chat, 0, (), new=lambda: (info.name, info.fingerprint, opened.params))
    opened = StoredChat(chat, options.notebook(engine, committer), params, None, store)
    return opened
