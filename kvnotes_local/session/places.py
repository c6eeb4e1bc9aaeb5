"""Where a session finds and keeps its things."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Places:
    """Where things are kept on disk, and where skills and models are looked for: in the places given here first, then,
    unless ``only_given``, in the usual ones."""

    cache: Path
    data: Path
    config: Path
    log: Path
    skills_dirs: tuple[Path, ...] = ()
    models: tuple[Path, ...] = ()
    only_given: bool = False

    @property
    def chats(self) -> Path:
        return self.data / "chats.sqlite"

    @property
    def artifacts(self) -> Path:
        return self.cache / "artifacts"

    @property
    def verdicts(self) -> Path:
        return self.cache / "verdicts"

    @property
    def settings(self) -> Path:
        return self.config / "settings.toml"
