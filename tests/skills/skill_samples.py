"""Skill folders for the tests of kvnotes_local.skills."""

from __future__ import annotations

from pathlib import Path

from kvnotes_local.artifacts.meta import ArtifactMeta
from kvnotes_local.skills.artifact_store import ArtifactStore


def write_skill(folder: Path, text: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    data = text.encode() if isinstance(text, str) else text
    (folder / "SKILL.md").write_bytes(data)
    return folder


def simple_skill(
    folder: Path, body: str = "Some text.", name: str | None = None, description: str = "What for."
) -> Path:
    return write_skill(folder, f"---\nname: {name or folder.name}\ndescription: {description}\n---\n\n{body}\n")


def path_of(store: ArtifactStore, meta: ArtifactMeta) -> Path:
    """Where an artifact belongs."""
    return store.path(meta.key, meta.skill, meta.model_fingerprint)
