"""Where a session finds and keeps its things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvnotes_local.paths import Paths, ensure_private

if TYPE_CHECKING:
    from kvnotes_local.notebook.store.chats import ChatStore
    from kvnotes_local.skills.artifact_store import ArtifactStore
    from kvnotes_local.skills.library import SkillLibrary
    from kvnotes_local.skills.status import ArtifactStatus
    from kvnotes_local.skills.verdicts import VerdictStore


@dataclass(frozen=True)
class Places:
    """Where things are kept on disk, and where skills and models are looked for: in the places given here first, then,
    unless ``only_given``, in the usual ones. The folders need not exist; a store makes the one that it needs."""

    cache: Path
    data: Path
    config: Path
    log: Path
    skills_dirs: tuple[Path, ...] = ()
    models: tuple[Path, ...] = ()
    only_given: bool = False

    @classmethod
    def usual(
        cls, *, cache: Path | None = None, data: Path | None = None, skills_dirs: Sequence[Path] | None = None
    ) -> Places:
        """Those of this user, with others where they are given."""
        paths = Paths.default()
        return cls(cache or paths.cache, data or paths.data, paths.config, paths.log, tuple(skills_dirs or ()))

    @property
    def chats(self) -> Path:
        return self.data / "chats.sqlite"

    @property
    def settings(self) -> Path:
        return self.config / "settings.toml"

    @property
    def llama_log(self) -> Path:
        return self.log / "llama.log"

    # Imported below: what needs no skills and no chats must not pay for reading them.

    def library(self) -> SkillLibrary:
        """The skills as they are on disk now."""
        from kvnotes_local.skills.library import SkillLibrary

        return SkillLibrary(self.skills_dirs) if self.only_given else SkillLibrary.default(self.skills_dirs)

    def artifact_store(self) -> ArtifactStore:
        """Raises KvnotesError where the cache directory cannot be made."""
        from kvnotes_local.skills.artifact_store import ArtifactStore

        return ArtifactStore(ensure_private(self.cache) / "artifacts")

    def verdict_store(self) -> VerdictStore:
        """Raises KvnotesError where the cache directory cannot be made."""
        from kvnotes_local.skills.verdicts import VerdictStore

        return VerdictStore(ensure_private(self.cache) / "verdicts")

    def chat_store(self) -> ChatStore:
        """Raises ChatStoreError where it cannot be opened."""
        from kvnotes_local.notebook.store.chats import ChatStore

        return ChatStore(self.chats)

    def fingerprint(self, model: Path) -> str:
        """The fingerprint of a model file: hashed once, remembered in the cache directory. Raises ModelError."""
        from kvnotes_local.models.fingerprint import model_fingerprint

        return model_fingerprint(model, ensure_private(self.cache))

    def artifact_states(self, library: SkillLibrary) -> dict[str, tuple[ArtifactStatus, ...]]:
        """What is compiled, imported and measured of each skill, see ``skills.status.artifact_states``."""
        from kvnotes_local.skills.imports import ImportShelf
        from kvnotes_local.skills.status import artifact_states

        store = self.artifact_store()
        return artifact_states(library, store.list(), ImportShelf(store).waiting.list(), self.verdict_store().list())
