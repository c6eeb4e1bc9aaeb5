"""What can be done with the open chat."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvnotes_local.contract.generation import Sampling
from kvnotes_local.errors import KvnotesError, UsageError
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.tui.news import ChatChanged, ChatOpened, FieldChanged, Notice
from kvnotes_local.tui.workbench.desk import EngineDesk, EngineRequest


@dataclass(frozen=True)
class NewChat(EngineRequest):
    """Begin a chat. ``system``: None for what the model's template says."""

    system: str | None = None

    @property
    def what(self) -> str:
        return "Beginning a chat"

    def run(self, desk: EngineDesk) -> None:
        open_on_desk(desk, "new", self.system)


@dataclass(frozen=True)
class OpenChat(EngineRequest):
    """Go on with a stored chat."""

    chat: str

    @property
    def what(self) -> str:
        return "Opening a chat"

    def run(self, desk: EngineDesk) -> None:
        open_on_desk(desk, self.chat)


def open_on_desk(desk: EngineDesk, chat: str, system: str | None = None) -> None:
    """Leave the open chat and put another one on the desk. The open one stays where the other cannot be opened."""
    from kvnotes_local.notebook.stored_chat import NOT_SAVED, open_chat

    model = desk.model
    if desk.has_chat and desk.chat.id == chat:
        return
    before = desk.chat.id if desk.has_chat and desk.is_stored else "new"
    if not desk.leave_chat():
        desk.tell(Notice(NOT_SAVED))

    def open_(which: str) -> None:
        desk.chat = open_chat(
            desk.store,
            model.engine,
            which,
            model.chat_options(system=system, on_notice=lambda text: desk.tell(Notice(text))),
        )
        if desk.chat.restored is None:
            defaults = desk.defaults
            params = replace(desk.chat.params, sampling=defaults.sampling, max_tokens=defaults.max_tokens)
            desk.chat.change_params(params)
        desk.tell(ChatOpened(desk.view(), desk.chat.restored))

    try:
        open_(chat)
    except KvnotesError:
        system = None
        open_(before)
        raise


@dataclass(frozen=True)
class SpliceSkill(EngineRequest):
    """Put a skill into the chat before segment ``at`` (None: at the end). ``read``: let the model read it instead."""

    name: str
    at: int | None = None
    read: bool = False

    @property
    def what(self) -> str:
        return f"{'Reading' if self.read else 'Splicing'} {self.name}"

    def run(self, desk: EngineDesk) -> None:
        notebook = desk.chat.notebook
        if self.name in notebook.skills:
            raise UsageError(f"{self.name} is in the chat already. /drop {self.name} takes it out.")
        desk.model.library.refresh()
        notebook.splice(self.name, at=self.at, read=self.read, progress=desk.progress)
        desk.tell(ChatChanged(desk.view(), f"splice {self.name}"))


@dataclass(frozen=True)
class DropSkill(EngineRequest):
    """Take a skill out of the chat. ``clean``: read what follows again."""

    name: str
    clean: bool = False

    @property
    def what(self) -> str:
        return f"Dropping {self.name}"

    def run(self, desk: EngineDesk) -> None:
        desk.chat.notebook.drop(self.name, clean=self.clean, progress=desk.progress)
        desk.tell(ChatChanged(desk.view(), f"drop {self.name}"))


@dataclass(frozen=True)
class SetField(EngineRequest):
    """Give a field another value."""

    name: str
    value: str
    level: EditLevel = EditLevel.FIELD_ERRATUM

    @property
    def what(self) -> str:
        return f"Setting {self.name}"

    def run(self, desk: EngineDesk) -> None:
        result = desk.chat.notebook.set(self.name, self.value, level=self.level, progress=desk.progress)
        desk.tell(ChatChanged(desk.view(), f"set {self.name}"))
        desk.tell(FieldChanged(result))


@dataclass(frozen=True)
class SetSystem(EngineRequest):
    """Give the chat another system text: skills are spliced again, the rest is read again."""

    text: str

    @property
    def what(self) -> str:
        return "Changing the system text"

    def run(self, desk: EngineDesk) -> None:
        cost = desk.chat.notebook.set_system(self.text, progress=desk.progress)
        desk.tell(ChatChanged(desk.view(), "system"))
        desk.tell(
            Notice(
                f"The chat stands as if it had begun with this text: {cost.spliced:,} tokens spliced again, "
                f"{cost.prefilled + cost.repaired:,} read again. /undo takes it back."
            )
        )


@dataclass(frozen=True)
class DeleteSegment(EngineRequest):
    """Take a segment out of the chat; what follows is moved."""

    at: int

    @property
    def what(self) -> str:
        return "Deleting"

    def run(self, desk: EngineDesk) -> None:
        desk.chat.notebook.delete(self.at, progress=desk.progress)
        desk.tell(ChatChanged(desk.view(), "delete"))


@dataclass(frozen=True)
class ForkChat(EngineRequest):
    """Go on in a new chat that begins like this one, up to segment ``at`` (None: all of it)."""

    at: int | None = None

    @property
    def what(self) -> str:
        return "Forking the chat"

    def run(self, desk: EngineDesk) -> None:
        twin = desk.chat.fork(self.at)
        before = desk.chat.id
        desk.leave_chat()
        desk.chat = twin
        desk.tell(ChatOpened(desk.view(), None))
        desk.tell(Notice(f"This is a fork of {before}; the original is among the chats (F4)."))


@dataclass(frozen=True)
class Undo(EngineRequest):
    """Take the last change of the chat back."""

    @property
    def what(self) -> str:
        return "Undoing"

    def run(self, desk: EngineDesk) -> None:
        done = desk.chat.notebook.undo()
        desk.tell(ChatChanged(desk.view(), "undo") if done else Notice("There is nothing to undo."))


@dataclass(frozen=True)
class Redo(EngineRequest):
    """Make the change again that was taken back last."""

    @property
    def what(self) -> str:
        return "Redoing"

    def run(self, desk: EngineDesk) -> None:
        done = desk.chat.notebook.redo()
        desk.tell(ChatChanged(desk.view(), "redo") if done else Notice("There is nothing to redo."))


@dataclass(frozen=True)
class ChangeSampling(EngineRequest):
    """Draw the chat's answers with other parameters from now on. ``max_tokens``: None leaves it."""

    sampling: Sampling
    max_tokens: int | None = None

    @property
    def what(self) -> str:
        return "Changing the sampling"

    def run(self, desk: EngineDesk) -> None:
        chat = desk.chat
        chat.change_params(
            replace(chat.params, sampling=self.sampling, max_tokens=self.max_tokens or chat.params.max_tokens)
        )
        desk.tell(ChatChanged(desk.view(), "parameters"))
