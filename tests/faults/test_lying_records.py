"""Records that kvnotes wrote itself and archives from other people, damaged or crafted: no crash, and no lasting refusal."""

from __future__ import annotations

import os
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvnotes_local.chat_format.format import ChatFormat
from kvnotes_local.engine.llama.build_check import FORMAT, BuildCheck
from kvnotes_local.engine.rotation.model_class import StoredRotation
from kvnotes_local.engine.rotation.record import from_json
from kvnotes_local.errors import KvnotesError, RotationError
from kvnotes_local.models.added import AddedModels
from kvnotes_local.models.default import DefaultModel
from kvnotes_local.models.files import FoundModel, ModelSource
from kvnotes_local.models.fingerprint import model_fingerprint
from kvnotes_local.records import CachedRecord
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.imports import ImportShelf
from kvnotes_local.skills.pins import PinMemory
from kvnotes_local.skills.skill_file import load_skill
from kvnotes_local.skills.speeds import SpeedMemory
from kvnotes_local.skills.transfer import export_skill, import_skill
from kvnotes_local.skills.verdicts import VerdictStore
from kvnotes_local.small_file import read_small
from kvnotes_local.tui.last_session import LastSession
from kvnotes_local.tui.settings import Settings, SettingsFile
from tests.conftest import MakeEngine
from tests.faults.test_lying_files import CORPUS, mutate

HOSTILE = sorted((CORPUS / "hostile").iterdir())


def fingerprint(folder: Path) -> object:
    model = folder / "m.gguf"
    model.write_bytes(b"weights")
    assert model_fingerprint(model, folder) == model_fingerprint(model, None)
    return None


def rotation(folder: Path) -> object:
    """As ``classify`` does: what cannot be read is measured again."""
    record = CachedRecord(folder / "rotation.json", StoredRotation).load()
    try:
        return None if record is None else (from_json(record.rotation), record.residual)
    except RotationError:
        return None


def default_model(folder: Path) -> object:
    return DefaultModel(folder / "default_model.json").find([FoundModel(Path("/m.gguf"), "m", 1, ModelSource.ADDED)])


RECORDS: dict[str, Callable[[Path], object]] = {
    "settings.toml": lambda folder: SettingsFile(folder / "settings.toml").load()[0],
    "last_session.json": LastSession.load,
    "models.json": lambda folder: AddedModels(folder / "models.json").paths,
    "speeds.json": lambda folder: SpeedMemory(folder).get("f" * 64),
    "fingerprints.json": fingerprint,
    "verdict.json": lambda folder: VerdictStore(folder).list(),
    "rotation.json": rotation,
    "build_check.json": lambda folder: CachedRecord(folder / "build_check.json", BuildCheck, FORMAT).load(),
    "default_model.json": default_model,
    "format.json": lambda folder: CachedRecord(folder / "format.json", ChatFormat).load(),
    "pinned.json": lambda folder: PinMemory(folder).names(),
}
"""Reads a record of that name in a folder."""

NOTHING: dict[str, object] = {
    "settings.toml": Settings(),
    "last_session.json": LastSession(),
    "verdict.json": (),
    "pinned.json": set(),
}
"""What a reader gives for a record that is not there, where that is not None."""

REFUSED = {"models.json": "add the models again", "default_model.json": "`kvnotes models default NAME`"}
"""Nobody but their user can write these again, so they are errors that say what to do."""


def damaged(name: str, seed: int, n: int = 60) -> Iterator[bytes]:
    good = (CORPUS / "records" / name).read_bytes()
    yield from (path.read_bytes() for path in HOSTILE)
    pick = random.Random(f"{name} {seed}")
    for _ in range(n):
        yield mutate(good, pick)


@pytest.mark.parametrize("name", RECORDS)
def test_a_damaged_record_is_as_if_it_were_not_there(tmp_path: Path, name: str, again: int) -> None:
    read, refusals = RECORDS[name], []
    shutil.copy(CORPUS / "records" / name, tmp_path / name)
    sound = read(tmp_path)
    if name not in {"fingerprints.json", "pinned.json"}:
        assert sound != NOTHING.get(name), "the seed is sound"
    for data in damaged(name, again):
        (tmp_path / name).write_bytes(data)
        try:
            value = read(tmp_path)
        except KvnotesError as error:
            refusals.append(str(error))
            continue
        assert type(value) in {type(sound), type(NOTHING.get(name))}
    assert bool(refusals) == (name in REFUSED)
    assert all(REFUSED[name] in message for message in refusals)


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes and devices as files")
@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("kind", ["pipe", "endless", "huge", "folder"])
def test_a_record_that_is_no_small_file_is_not_waited_for(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        path.mkdir()
    if name in REFUSED:
        with pytest.raises(KvnotesError, match=re.escape(REFUSED[name])):
            RECORDS[name](tmp_path)
    else:
        assert RECORDS[name](tmp_path) == NOTHING.get(name)


def test_what_a_user_names_may_be_a_pipe_but_not_endless(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"hello")
    os.close(writing)
    if Path(f"/dev/fd/{reading}").exists():
        assert read_small(Path(f"/dev/fd/{reading}"), pipe=True) == "hello"
    os.close(reading)
    if Path("/dev/zero").exists():
        with pytest.raises(OSError, match="larger than"):
            read_small(Path("/dev/zero"), pipe=True)


def test_a_damaged_archive_is_refused_or_read_whole_and_leaves_nothing_behind(
    tiny_engine: MakeEngine, tmp_path: Path, again: int
) -> None:
    folder = tmp_path / "lamp"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: lamp\ndescription: lamp\n---\nThe lamp is green.\n")
    store = ArtifactStore(tmp_path / "artifacts")
    SkillCompiler(tiny_engine(), store, n_leads=1).compile(load_skill(folder))
    archive = tmp_path / "lamp.kvnotes.zip"
    export_skill(load_skill(folder), store.list(), archive)
    good, pick = archive.read_bytes(), random.Random(again)
    directory = good.index(b"PK\x01\x02")
    refusals: list[str] = []
    there = {path for path in tmp_path.rglob("*") if path.is_file()}
    for number in range(80):
        data = bytearray(good)
        for _ in range(pick.choice([1, 4])):
            # Half of the accidents strike the archive's directory, which is a small part of the file.
            at = pick.randrange(directory if number % 2 else 0, len(data))
            data[at] = pick.choice([data[at] ^ 1 << pick.randrange(8), 0, 255])
        archive.write_bytes(data if number % 5 else mutate(good, pick))
        inbox, skills = tmp_path / "in", tmp_path / "skills"
        try:
            imported = import_skill(archive, ImportShelf(ArtifactStore(inbox / "artifacts")), skills)
            assert imported.skill.text() == "The lamp is green."
            assert (skills / "lamp" / "SKILL.md").read_bytes() == (folder / "SKILL.md").read_bytes()
        except KvnotesError as error:
            refusals.append(str(error))
            assert not skills.exists()
            assert not [path for path in inbox.rglob("*") if path.is_file()]
        for made in (inbox, skills):
            shutil.rmtree(made, ignore_errors=True)
        assert {path for path in tmp_path.rglob("*") if path.is_file()} == there
    assert 40 < len(refusals) < 80
    assert not [message for message in refusals if "()" in message], "it has to say why"


def test_a_skill_that_is_there_is_not_written_again(tiny_engine: MakeEngine, tmp_path: Path) -> None:
    """It may be a link to a folder outside, which only its owner writes to."""
    folder = tmp_path / "lamp"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: lamp\ndescription: lamp\n---\nThe lamp is green.\n")
    store = ArtifactStore(tmp_path / "artifacts")
    SkillCompiler(tiny_engine(), store, n_leads=1).compile(load_skill(folder))
    export_skill(load_skill(folder), store.list(), tmp_path / "lamp.kvnotes.zip")
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "lamp").symlink_to(folder)
    before = (folder / "SKILL.md").stat()
    import_skill(tmp_path / "lamp.kvnotes.zip", ImportShelf(ArtifactStore(tmp_path / "in" / "a")), tmp_path / "skills")
    after = (folder / "SKILL.md").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [path.name for path in folder.iterdir()] == ["SKILL.md"]
