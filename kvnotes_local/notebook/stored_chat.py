"""A chat that is stored as it grows: new, or gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvnotes_local.engine.protocol import Engine
from kvnotes_local.errors import UsageError
from kvnotes_local.notebook.chat_store import ChatStore
from kvnotes_local.notebook.listening import OnText
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.on_full import OnFull
from kvnotes_local.notebook.segment import Segment
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary

NEW = "new"


@dataclass(frozen=True)
class StoredChat:
    """A notebook whose changes are committed to the store under ``id``.

    ``restored``: None for a new chat; True where its saved state was loaded, False where it was made anew from artifacts
    and text.
    """

    id: str
    notebook: Notebook
    restored: bool | None

    def leave(self) -> bool:
        """Save the state for the next time and give the sequence back; False where there was no room for it."""
        return self.notebook.park(self.id, on_disk=True)


def open_chat(
    store: ChatStore,
    engine: Engine,
    chat: str,
    *,
    library: SkillLibrary | None = None,
    compiler: SkillCompiler | None = None,
    system: str | None = None,
    values: Mapping[str, str] | None = None,
    on_notice: OnText | None = None,
    on_full: OnFull = OnFull.DROP_OLDEST,
) -> StoredChat:
    """A new chat (``"new"``) or the stored one with this id. Raises ChatStoreError, UsageError for another model's chat."""
    info = engine.info
    stored = None if chat == NEW else store.load(chat)
    if stored is None:
        params = {"type_k": info.type_k.name, "type_v": info.type_v.name, "n_ctx": info.n_ctx}
        chat_id = store.create(info.name, info.fingerprint, params=dict(params))
    else:
        chat_id = stored.summary.id
        if stored.summary.model_fingerprint != info.fingerprint:
            raise UsageError(
                f"The chat {chat_id} was held with {stored.summary.model_name}; its tokens mean something else to "
                f"{info.name}. Use --model {stored.summary.model_name}."
            )
        if system is not None:
            raise UsageError(f"The chat {chat_id} has its system text already. Start a new one for another.")

    def commit(segments: tuple[Segment, ...], what: str) -> None:
        store.save(chat_id, segments, what)

    if stored is None:
        notebook = Notebook(
            engine,
            library=library,
            compiler=compiler,
            system=system,
            values=values,
            on_notice=on_notice,
            on_full=on_full,
            on_change=commit,
        )
        return StoredChat(chat_id, notebook, None)
    notebook, restored = Notebook.resume(
        engine,
        stored.segments,
        chat_id,
        library=library,
        compiler=compiler,
        on_notice=on_notice,
        on_full=on_full,
        on_change=commit,
    )
    return StoredChat(chat_id, notebook, restored)
