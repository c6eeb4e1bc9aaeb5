"""Chats, settings, artifacts, verdicts and memories that the first version wrote open unchanged.

The files in ``fixtures/stored_before`` were written by that version from ``stored_values``; they are never written again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvnotes_local.artifacts.artifact import open_artifact
from kvnotes_local.artifacts.meta import meta_from_strings, meta_to_strings
from kvnotes_local.chat_format.format import ChatFormat
from kvnotes_local.engine.llama.build_check import BuildCheck, ChildResult, extra_buffers_safe
from kvnotes_local.engine.rotation.model_class import StoredRotation
from kvnotes_local.engine.rotation.record import from_json, rotation_fingerprint
from kvnotes_local.kv.layout import CacheLayout, StateLayout
from kvnotes_local.kv.rotation import angles
from kvnotes_local.models.added import AddedModels
from kvnotes_local.models.default import DefaultModel
from kvnotes_local.models.files import FoundModel, ModelSource
from kvnotes_local.models.fingerprint import model_fingerprint
from kvnotes_local.notebook.store.chats import ChatStore
from kvnotes_local.notebook.store.params import ChatParams
from kvnotes_local.notebook.store.segment_rows import COLUMNS
from kvnotes_local.records import CachedRecord
from kvnotes_local.skills.pins import PinMemory
from kvnotes_local.skills.speeds import SpeedMemory
from kvnotes_local.skills.verdicts import VerdictStore
from kvnotes_local.tui.last_session import LastSession
from kvnotes_local.tui.settings import SettingsFile
from tests import stored_values as stored
from tests.artifacts.samples import LAYOUTS, META, layer, meta_for, random_rows, same_rows

BEFORE = Path(__file__).parent / "fixtures" / "stored_before"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BEFORE, tmp_path / "home"))


def test_a_chat_with_segments_of_every_kind(tmp_path: Path) -> None:
    content = json.loads((BEFORE / "chat.json").read_text("utf-8"))
    store = ChatStore(tmp_path / "chats.sqlite")
    store.save("0badcafe", [], "new", new=("SmolLM2", "f" * 64, ChatParams()))
    columns = ["chat", "number", *COLUMNS.split(", ")]
    with sqlite3.connect(tmp_path / "chats.sqlite") as database:
        database.execute("UPDATE chats SET params = ?", (content["params"],))
        for row in content["segments"]:
            values = dict(zip(columns, row, strict=True))
            values["tokens"] = bytes.fromhex(values["tokens"])
            marks = ", ".join(f":{name}" for name in columns)
            database.execute(f"INSERT INTO segments ({', '.join(columns)}) VALUES ({marks})", values)
    chat = store.load("0badcafe")
    assert chat.segments == stored.SEGMENTS
    assert [one.proof for one in chat.segments] == [one.proof for one in stored.SEGMENTS]
    assert {one.kind for one in chat.segments} == set(type(chat.segments[0].kind))
    assert {run.freshness for one in chat.segments for run in one.runs} == set(type(chat.segments[0].freshness))
    assert chat.params == stored.PARAMS


def test_what_is_kept_of_a_chat_is_written_as_before(tmp_path: Path) -> None:
    """Two versions may use one database."""
    store = ChatStore(tmp_path / "chats.sqlite")
    store.save("0badcafe", stored.SEGMENTS, "say", new=("SmolLM2", "f" * 64, stored.PARAMS))
    content = json.loads((BEFORE / "chat.json").read_text("utf-8"))
    with sqlite3.connect(tmp_path / "chats.sqlite") as database:
        (params,) = database.execute("SELECT params FROM chats").fetchone()
        rows = database.execute(f"SELECT chat, number, {COLUMNS} FROM segments ORDER BY number").fetchall()
    assert json.loads(params) == json.loads(content["params"])
    assert [[one.hex() if isinstance(one, bytes) else one for one in row] for row in rows] == content["segments"]


def test_a_verdict_under_its_file_name(home: Path, tmp_path: Path) -> None:
    store = VerdictStore(home / "verdicts")
    assert store.find(stored.VERDICT.conditions) == stored.VERDICT
    assert store.list() == (stored.VERDICT,)
    VerdictStore(tmp_path / "new").put(stored.VERDICT)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [path.name for path in store.directory.iterdir()]


def test_speeds(home: Path) -> None:
    memory = SpeedMemory(home)
    assert {key: memory.get(key) for key in stored.SPEEDS} == stored.SPEEDS


def test_pins(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "harbour"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: harbour\ndescription: d\nmetadata:\n  kvnotes.pin: true\n---\nText\n")
    file = home / "pinned.json"
    file.write_text(file.read_text().replace("/skills/harbour", folder.as_posix()))
    assert PinMemory(home).names() == {"harbour"}


def test_fingerprints(home: Path, tmp_path: Path) -> None:
    """The file has other bytes than the one that was hashed, but its name, size and time: it is not read."""
    model = tmp_path / "m.gguf"
    model.write_bytes(b"WEIGHTS")
    os.utime(model, ns=(10**18, 10**18))
    file = home / "fingerprints.json"
    file.write_text(file.read_text().replace("/models/m.gguf", model.resolve().as_posix()))
    (known,) = json.loads(file.read_text()).values()
    assert model_fingerprint(model, home) == known != model_fingerprint(model, None)


def test_the_check_of_the_build(tmp_path: Path) -> None:
    def check() -> BuildCheck:
        ends_well = ChildResult(0, "")
        return extra_buffers_safe(
            Path("m"), tmp_path, runner=lambda command: ends_well, cpu_flags=frozenset({"amx_tile"}), env={}
        )

    assert check().safe
    (file,) = tmp_path.iterdir()
    shutil.copy(BEFORE / "build-check.json", file)
    reason = f"llama.cpp crashed in a trial decode ({signal.Signals.SIGSEGV.name})"
    assert check() == BuildCheck(False, reason, "pip install again")


def test_a_measured_rotation_with_its_fingerprint(home: Path) -> None:
    found = CachedRecord(home / "rotation.json", StoredRotation).load()
    assert found is not None
    rotation = from_json(found.rotation)
    assert found.residual == stored.RESIDUAL
    # Keys of artifacts are made of it.
    assert rotation_fingerprint(rotation) == "f1635b9ea96c868b35ace1d148bcc0ef78e967dbaa84c678f212bb6570803533"
    assert rotation_fingerprint(stored.ROTATION) == rotation_fingerprint(rotation)
    positions = np.array([0, 1, 4000])
    for ours, theirs in zip(rotation.caches, stored.ROTATION.caches, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(angles(one, positions), angles(other, positions))


def test_settings(home: Path) -> None:
    assert SettingsFile(home / "settings.toml").load() == (stored.SETTINGS, ())


def test_the_last_session(home: Path, tmp_path: Path) -> None:
    assert LastSession.load(home) == stored.LAST_SESSION
    stored.LAST_SESSION.save(tmp_path)
    assert LastSession.load(tmp_path) == stored.LAST_SESSION


def test_models_that_were_added_also_where_a_name_is_no_text(home: Path) -> None:
    assert AddedModels(home / "models.json").paths == stored.ADDED


def test_the_default_model(home: Path) -> None:
    moved = FoundModel(Path("/new/place.gguf"), "café", 1, ModelSource.ADDED)
    assert DefaultModel(home / "default_model.json").find([moved]) == moved


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_an_artifact_says_of_itself_and_its_key(name: str) -> None:
    strings = json.loads((BEFORE / "metas.json").read_text("utf-8"))[name]
    meta = meta_from_strings(strings)
    assert meta == replace(meta_for(LAYOUTS[name][0]), layout=LAYOUTS[name][0])
    assert meta_to_strings(meta) == strings
    assert (
        meta.key
        == {
            "f16": "31c9535bd615de145796e186c5590adebcb7f7b7ee2b91951bc828f14be1d640",
            "q8_0": "9f42eac2b81ecd6db4dfa4c440f09d59d098d82cbb5f05e4010d7b2c92e7e39e",
        }[meta.store]
    )


def test_an_artifact(home: Path) -> None:
    layout = StateLayout((CacheLayout((layer(n_embd=8),)),))
    with open_artifact(home / "tiny.safetensors") as artifact:
        assert artifact.meta == replace(META, layout=layout)
        assert same_rows(artifact.rows(), random_rows(layout, (12,)))


def test_a_format_of_chats(home: Path) -> None:
    assert CachedRecord(home / "format.json", ChatFormat).load() == stored.FORMAT
