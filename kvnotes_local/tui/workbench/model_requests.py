"""Loading and unloading models."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.errors import UsageError
from kvnotes_local.notebook.store.database import ChatStoreError
from kvnotes_local.tui.news import ModelGone, ModelReady, Notice, WorkProgressed
from kvnotes_local.tui.workbench.chat_requests import open_on_desk
from kvnotes_local.tui.workbench.desk import EngineDesk, EngineRequest


@dataclass(frozen=True)
class LoadModel(EngineRequest):
    """Load a model in place of the one that is loaded, and open a chat. ``chat``: id of one to go on with; None begins a new
    one."""

    path: Path
    params: EngineParams = field(default_factory=EngineParams)
    chat: str | None = None

    @property
    def what(self) -> str:
        return f"Loading {self.path.stem}"

    def run(self, desk: EngineDesk) -> None:
        from kvnotes_local.session.session import load

        desk.crashes.asked = self.path, self.params
        desk.unload()
        desk.tell(ModelGone())

        def progress(fraction: float) -> bool:
            desk.tell(WorkProgressed(int(100 * fraction), 100, "%"))
            return not desk.stop.is_set()

        desk.loaded = load(
            self.path,
            self.params,
            desk.places,
            desk.open_engine,
            stop=desk.stop,
            note=lambda text: desk.tell(Notice(text)),
            progress=progress,
        )
        info = desk.loaded.engine.info
        desk.tell(ModelReady(info))
        if info.format_notice is not None:
            desk.tell(Notice(info.format_notice))
        if self.chat is None:
            open_on_desk(desk, "new")
            return
        try:
            open_on_desk(desk, self.chat)
        except (UsageError, ChatStoreError) as error:
            desk.tell(Notice(f"{error} A new chat was begun."))  # of another model, or deleted meanwhile


@dataclass(frozen=True)
class UnloadModel(EngineRequest):
    """Give the model's memory back; the chat is saved."""

    @property
    def what(self) -> str:
        return "Unloading the model"

    def run(self, desk: EngineDesk) -> None:
        desk.unload()
        desk.tell(ModelGone())
