"""One file with a skill and its artifacts for one model: what ``export`` writes and ``import`` takes apart.

A zip archive without compression, so that nothing small grows large: ``kvnotes.json`` (format, skill, model), ``SKILL.md``,
``evals.jsonl`` and ``references/…`` where the skill has them, and ``artifacts/N.safetensors``. Reading is by these names
only; no name in the archive becomes a path unless every part of it is a plain one.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvnotes_local.artifacts.meta import ArtifactKind, ArtifactMeta, text_sha256
from kvnotes_local.artifacts.tensor_file import TEMPORARY_PREFIX, TEMPORARY_SUFFIX
from kvnotes_local.artifacts.writer import NO_ROOM
from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.errors import ArtifactError, DiskFullError, KvnotesError, SkillError
from kvnotes_local.skills.artifact_store import StoredArtifact
from kvnotes_local.skills.evals import FILE_NAME as EVALS
from kvnotes_local.skills.imports import ImportShelf
from kvnotes_local.skills.skill import Skill
from kvnotes_local.skills.skill_file import (
    FILE_NAME,
    MAX_FILE_BYTES,
    MAX_NAME,
    find_skill_file,
    is_skill_name,
    load_part,
    load_skill,
)

EXPORT_SUFFIX = ".kvnotes.zip"
_FORMAT, _FORMAT_VERSION = "kvnotes-export", 1
_MANIFEST = "kvnotes.json"
_MAX_FILES = 64
_MAX_MANIFEST = 64 * 1024
_TEXT = re.compile(
    r"SKILL\.md|evals\.jsonl|references/(?:[A-Za-z0-9][A-Za-z0-9_-]{0,60}/){0,2}[A-Za-z0-9][\w-]{0,60}\.\w{1,8}", re.A
)
_ARTIFACT = re.compile(r"artifacts/\d{1,2}\.safetensors", re.A)
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)", re.I)


@dataclass(frozen=True)
class Imported:
    """What an archive held. ``folder``: of the skill, now; ``waiting``: its artifacts, on the import shelf."""

    skill: Skill
    model_name: str
    model_fingerprint: str
    waiting: tuple[StoredArtifact, ...]


def export_skill(skill: Skill, artifacts: Sequence[StoredArtifact], target: Path) -> int:
    """Write the archive; it appears only when complete. Bytes written.

    Raises:
        SkillError: the skill's name or a file of it cannot go into an archive.
        KvnotesError: ``target`` cannot be written.
    """
    metas = [one.meta for one in artifacts if one.meta is not None]
    texts = list(_texts(skill))
    _check_exportable(skill, metas, [name for name, _ in texts])
    manifest = {
        "format": _FORMAT,
        "format_version": _FORMAT_VERSION,
        "skill": skill.name,
        "model": {"name": metas[0].model_name, "arch": metas[0].model_arch, "sha256": metas[0].model_fingerprint},
    }
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=target.parent, prefix=TEMPORARY_PREFIX, suffix=TEMPORARY_SUFFIX, delete=False
        ) as file:
            made = Path(file.name)
            try:
                with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive:
                    archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
                    for name, path in texts:
                        archive.write(path, name)
                    for number, one in enumerate(artifacts):
                        archive.write(one.path, f"artifacts/{number}.safetensors")
                file.close()
                made.replace(target)
            except BaseException:
                file.close()
                made.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise KvnotesError(
            f"{target} cannot be written ({error.strerror or error}); choose another --output"
        ) from error
    return target.stat().st_size


def _check_exportable(skill: Skill, metas: Sequence[ArtifactMeta], texts: Sequence[str]) -> None:
    """``texts``: names of the files that go along. Raises SkillError, ArtifactError."""
    if "/" in skill.name:
        raise SkillError(f"{skill.name} is a part; export {skill.name.partition('/')[0]}, and it goes along")
    if not is_skill_name(skill.name) or _RESERVED.match(skill.name):
        raise SkillError(
            f"{skill.name!r} is no name for a folder on every machine; use 1 to {MAX_NAME} of a-z, 0-9 and single hyphens"
        )
    if not metas:
        raise ArtifactError(f"{skill.name} has no artifact; compile it with 'kvnotes skills compile {skill.name}'")
    if any(meta.kind is ArtifactKind.STATE for meta in metas):
        raise ArtifactError(
            f"{skill.name} for {metas[0].model_name} is one whole state, which no other machine could check; copy the skill's "
            "folder, and compile it there"
        )
    for meta in metas:
        part = meta.skill.partition("/")[2]
        if part and part not in texts:
            raise SkillError(
                f"{part} of {skill.name} has an artifact, but cannot go along: only files under references/ with plain names can "
                f"(a-z, 0-9, hyphens). Rename it, or 'kvnotes skills remove {meta.skill}'"
            )


def import_skill(path: Path, shelf: ImportShelf, skills_folder: Path | None) -> Imported:
    """Take an archive apart: the skill goes below ``skills_folder`` (None: it is compared, not written), its artifacts onto the
    shelf.

    Nothing is overwritten: a skill of that name has to be the same text.

    Raises:
        ArtifactError: the archive or an artifact in it is damaged, unsafe, or does not belong to its skill.
        SkillError: its skill cannot be read, or another one of that name is there.
    """
    with _archive(path) as archive:
        names = _checked_names(path, archive)
        manifest = _manifest(path, archive)
        name = manifest["skill"]
        with tempfile.TemporaryDirectory(prefix="kvnotes-import-") as scratch:
            folder = Path(scratch) / name
            for text in (one for one in names if _TEXT.fullmatch(one)):
                target = folder.joinpath(*text.split("/"))
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(text))
            skill = load_skill(folder)
            if skill.name != name:
                raise ArtifactError(
                    f"{path} says that it holds {name!r}, but its SKILL.md is named {skill.name[:80]!r}"
                )
            if skills_folder is not None:
                _check_same(folder, skills_folder / name)
            waiting = tuple(
                _to_shelf(path, archive, one, skill, manifest, shelf) for one in names if _ARTIFACT.fullmatch(one)
            )
            if skills_folder is not None:
                there = skills_folder / name
                # What is there is the same, and may be a link to a folder that is not ours to write to.
                skill = load_skill(there) if there.exists() else _install(folder, there)
    return Imported(skill, manifest["model"]["name"], manifest["model"]["sha256"], waiting)


def _texts(skill: Skill) -> Iterator[tuple[str, Path]]:
    """Files of the skill that go along, by their names in the archive."""
    file = find_skill_file(skill.folder)
    if file is None:
        raise SkillError(f"{skill.folder} has no {FILE_NAME} any more")
    yield FILE_NAME, file
    if (skill.folder / EVALS).is_file():
        yield EVALS, skill.folder / EVALS
    folder = skill.folder.resolve()
    for path in sorted((skill.folder / "references").rglob("*"))[:_MAX_FILES]:
        name = path.relative_to(skill.folder).as_posix()
        if path.is_file() and _TEXT.fullmatch(name) and path.resolve().is_relative_to(folder):
            yield name, path


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except FileNotFoundError as error:
        raise ArtifactError(f"There is no file {path}.") from error
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise DiskFullError(
                f"{path} cannot be taken in ({error.strerror}); make room with 'kvnotes skills gc', or choose another --cache-dir"
            ) from error
        raise ArtifactError(
            f"{path} is no readable export ({error or 'it is cut short'}); let it be exported again"
        ) from error


def _checked_names(path: Path, archive: zipfile.ZipFile) -> list[str]:
    """Names of what the archive holds. Raises ArtifactError for anything that an export does not have."""
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    if len(entries) > 2 * _MAX_FILES or len({name.casefold() for name in names}) != len(names):
        raise ArtifactError(f"{path} is no export: it holds too many files, or one of them twice")
    for entry in entries:
        is_artifact = bool(_ARTIFACT.fullmatch(entry.filename))
        is_text = bool(_TEXT.fullmatch(entry.filename)) and not any(map(_RESERVED.match, entry.filename.split("/")))
        limit = None if is_artifact else MAX_FILE_BYTES if is_text else _MAX_MANIFEST
        if not (is_artifact or is_text or entry.filename == _MANIFEST):
            raise ArtifactError(f"{path} is no export: it holds a file {entry.filename[:80]!r}")
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size or entry.flag_bits & 1:
            raise ArtifactError(f"{path} is no export: {entry.filename} is compressed or encrypted")
        if limit is not None and entry.file_size > limit:
            raise ArtifactError(f"{path} is no export: {entry.filename} is larger than {limit // 1024} KiB")
    if FILE_NAME not in names or _MANIFEST not in names or not any(map(_ARTIFACT.fullmatch, names)):
        raise ArtifactError(f"{path} is no export: it needs {_MANIFEST}, {FILE_NAME} and an artifact")
    return names


def _manifest(path: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    try:
        manifest: Any = json.loads(archive.read(_MANIFEST))
        known = manifest["format"] == _FORMAT and manifest["format_version"] == _FORMAT_VERSION
        texts = [manifest["skill"], *(manifest["model"][key] for key in ("name", "arch", "sha256"))]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"{path} is no export: its {_MANIFEST} cannot be read") from error
    if not known:
        raise ArtifactError(f"{path} has a format that this version of kvnotes-local does not know")
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        raise ArtifactError(f"{path} is no export: its {_MANIFEST} is malformed")
    if not is_skill_name(texts[0]) or _RESERVED.match(texts[0]):
        raise ArtifactError(f"{path} names its skill {texts[0][:80]!r}, which is no name for a folder")
    return dict(manifest)


def _to_shelf(
    path: Path, archive: zipfile.ZipFile, member: str, skill: Skill, manifest: dict[str, Any], shelf: ImportShelf
) -> StoredArtifact:
    shelf.waiting.check_writable()
    with tempfile.NamedTemporaryFile(
        dir=shelf.waiting.directory, prefix=TEMPORARY_PREFIX, suffix=TEMPORARY_SUFFIX
    ) as file:
        with archive.open(member) as source:
            shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        stored = shelf.put(Path(file.name), f"imported from {path.name}")
    assert stored.meta is not None
    try:
        _check_belongs(path, skill, stored.meta, manifest)
    except KvnotesError:
        shelf.waiting.remove_path(stored.path)
        raise
    return stored


def _check_belongs(path: Path, skill: Skill, meta: ArtifactMeta, manifest: dict[str, Any]) -> None:
    """Raise ArtifactError unless the artifact was made from this skill (or a reference of it) for the manifest's model."""
    if meta.model_fingerprint != manifest["model"]["sha256"]:
        raise ArtifactError(f"{path} holds an artifact for another model than it says ({meta.model_name})")
    name, _, part = meta.skill.partition("/")
    if name != skill.name:
        raise ArtifactError(f"{path} holds an artifact of another skill ({meta.skill})")
    source = load_part(skill, part) if part else skill
    if text_sha256(source.text({one.name: one.value for one in meta.fields})) != meta.skill_sha256:
        raise ArtifactError(f"{path} holds an artifact that was made from another text than its SKILL.md")


def _files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _check_same(new: Path, there: Path) -> None:
    if there.exists() and any(
        not (there / name).is_file() or (there / name).read_bytes() != data for name, data in _files(new).items()
    ):
        raise SkillError(
            f"{there} is there already and differs from the imported skill; import --to another folder, or rename one"
        )


def _install(new: Path, there: Path) -> Skill:
    """Copy the skill's files, SKILL.md last: before that the folder is no skill. Raises SkillError."""
    try:
        for name, data in sorted(_files(new).items(), key=lambda item: item[0] == FILE_NAME):
            write_atomically(there.joinpath(*name.split("/")), data)
    except OSError as error:
        raise SkillError(
            f"{there} cannot be written ({error.strerror or error}); import --to another folder"
        ) from error
    return load_skill(there)
