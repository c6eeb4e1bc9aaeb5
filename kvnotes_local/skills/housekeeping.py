"""Making room: what was compiled of some skills, and what nobody needs any more. Skills themselves are never touched."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta

from kvnotes_local.artifacts.meta import ArtifactMeta
from kvnotes_local.errors import ArtifactError
from kvnotes_local.skills.artifact_store import SUFFIX, ArtifactStore, StoredArtifact
from kvnotes_local.skills.imports import ImportShelf
from kvnotes_local.skills.library import SkillLibrary
from kvnotes_local.skills.pins import PinMemory
from kvnotes_local.spelling import composed


@dataclass(frozen=True)
class Removed:
    """An artifact that is gone, or would be. ``skill``: as its file says, or is named where it is damaged."""

    skill: str
    stored: StoredArtifact


@dataclass(frozen=True)
class Garbage:
    """Files that are gone, or would be, and the bytes of artifacts that stay."""

    files: tuple[StoredArtifact, ...]
    bytes_left: int


IsMeant = Callable[[ArtifactMeta], bool]


def remove_artifacts_of(
    store: ArtifactStore,
    names: Collection[str] | None,
    models: Mapping[str, IsMeant] | None = None,
    *,
    dry_run: bool = False,
) -> tuple[Removed, ...]:
    """Delete the artifacts of these skills (None: of all), also the imported ones that wait for their check.

    ``models``: only those that one of these calls its own; by what the user calls them. Raises ArtifactError for a name that
    has none, and where there is none for these models; nothing is deleted then.
    """
    names = None if names is None else [composed(name) for name in names]
    doomed: list[tuple[ArtifactStore, Removed]] = []
    known: set[str] = set()
    model_names: set[str] = set()
    for place in (store, ImportShelf(store).waiting):
        for one in place.list():
            skill = one.path.stem.rsplit("-", 1)[0] if one.meta is None else one.meta.skill
            owner = skill.partition("/")[0]
            known |= {owner, skill}
            model_names.add(one.model_name)
            if names is not None and owner not in names and skill not in names:
                continue
            if not models or (one.meta is not None and any(is_meant(one.meta) for is_meant in models.values())):
                doomed.append((place, Removed(skill, one)))
    if missing := [name for name in names or () if name not in known]:
        there = f" Compiled are: {', '.join(sorted(known))}." if known else " Nothing is compiled."
        raise ArtifactError(f"There are no artifacts of {', '.join(missing)}.{there}")
    if models and not doomed:
        there = f" There are some for {', '.join(sorted(filter(None, model_names)))}." if any(model_names) else ""
        raise ArtifactError(f"There are no such artifacts for {', '.join(models)}.{there}")
    if not dry_run:
        for place, removed in doomed:
            place.remove_path(removed.stored.path)
    return tuple(removed for _, removed in doomed)


def collect_garbage(
    store: ArtifactStore,
    library: SkillLibrary,
    pins: PinMemory,
    *,
    max_bytes: int | None = None,
    older_than: timedelta | None = None,
    dry_run: bool = False,
) -> Garbage:
    """Delete what another version made and what interrupted writes left; with limits also what was not used for long. Pinned
    skills keep theirs."""
    pinned = {skill.name for skill in library.skills if skill.settings.pin} | pins.names()
    before = store.total_bytes()
    of_store = store.gc(max_bytes, older_than, dry_run=dry_run, keep=pinned)
    waiting = ImportShelf(store).waiting.gc(older_than=older_than, dry_run=dry_run, keep=pinned)
    return Garbage((*of_store, *waiting), before - sum(one.n_bytes for one in of_store if one.path.suffix == SUFFIX))
