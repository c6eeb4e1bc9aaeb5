"""The folder that artifacts are kept in."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from skill_samples import path_of

from kvnotes_local.artifacts.artifact import ArtifactMeta
from kvnotes_local.artifacts.writer import write_artifact, write_state_artifact
from kvnotes_local.errors import ArtifactError
from kvnotes_local.skills.artifact_store import ArtifactStore
from tests.artifacts.samples import LAYOUTS, META, random_rows
from tests.conftest import REPOSITORY

DAY = 86400.0


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


def put(store: ArtifactStore, age_days: float = 0.0, **changes: str) -> ArtifactMeta:
    meta = replace(META, **changes)  # type: ignore[arg-type]
    path = path_of(store, meta)
    write_artifact(path, meta, random_rows(*LAYOUTS["plain"]))
    then = time.time() - age_days * DAY
    os.utime(path, (then, then))
    return meta


def names(store: ArtifactStore) -> list[str]:
    return [one.meta.skill if one.meta else "?" for one in store.list()]


def test_an_empty_store_need_not_exist(store: ArtifactStore) -> None:
    assert store.list() == ()
    assert store.find(META.key) is None
    assert store.remove(META.key) == 0
    assert store.total_bytes() == 0
    assert store.gc(max_bytes=0) == ()
    store.touch_used(path_of(store, META))
    assert not store.directory.exists()


def test_an_artifact_is_found_by_its_key(store: ArtifactStore) -> None:
    one, two = put(store), put(store, lead="other")

    assert store.find(one.key) == path_of(store, one)
    assert store.find(two.key) == path_of(store, two) != path_of(store, one)
    assert path_of(store, one).relative_to(store.directory).parts == (
        "abababababab",
        f"refund-policy-{one.key[:16]}.safetensors",
    )
    assert store.find("0" * 64) is None
    for bad in ("", "*", "../..", "ABCDEF" * 4, one.key[:15]):
        with pytest.raises(ArtifactError, match="is no artifact key"):
            store.find(bad)


@pytest.mark.parametrize("name", ["../../etc/x", "a/b", "..", "", "\x00\n", "é" * 300, "C:\\x", "nul", ".hidden"])
def test_no_name_leads_out_of_the_store(store: ArtifactStore, name: str) -> None:
    path = store.path(META.key, name, name)

    assert path.parent.parent == store.directory
    assert path.resolve().is_relative_to(store.directory.resolve())
    assert not path.name.startswith(".")
    write_artifact(path, META, random_rows(*LAYOUTS["plain"]))
    assert store.find(META.key) == path


def test_listing_shows_sizes_and_what_is_damaged(store: ArtifactStore) -> None:
    put(store, skill="one")
    state = replace(META, skill="two")
    write_state_artifact(path_of(store, state), state, b"x" * 1000)
    bad = put(store, skill="three")
    path_of(store, bad).write_bytes(b"rubbish")
    (store.directory / "abababababab" / "notes.txt").write_text("not one")

    listed = {one.path.name.rsplit("-", 1)[0]: one for one in store.list()}

    assert listed.keys() == {"one", "two", "three"}
    assert listed["one"].meta is not None
    assert listed["one"].problem == ""
    assert listed["three"].meta is None
    assert "compile it again with 'kvnotes skills compile three'" in listed["three"].problem
    assert store.total_bytes() == sum(one.n_bytes for one in listed.values())
    assert listed["three"].n_bytes == 7
    assert store.remove_path(listed["three"].path) == 7
    assert len(store.list()) == 2


def test_listing_reads_headers_only(store: ArtifactStore) -> None:
    path = path_of(store, put(store))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    assert store.list()[0].problem == ""


def test_only_files_of_the_store_can_be_removed(store: ArtifactStore, tmp_path: Path) -> None:
    meta = put(store)
    outside = tmp_path / "x.safetensors"
    outside.write_text("mine")

    for path in (outside, store.directory / "abababababab" / ".." / ".." / "x.safetensors", store.directory):
        with pytest.raises(ArtifactError, match="is no artifact in"):
            store.remove_path(path)
    assert outside.exists()
    assert store.remove(meta.key) > 0
    assert store.find(meta.key) is None


def test_use_is_noted_without_changing_the_content(store: ArtifactStore) -> None:
    meta = put(store, age_days=30)
    before = path_of(store, meta).read_bytes()
    assert time.time() - store.list()[0].last_used > 29 * DAY

    store.touch_used(path_of(store, meta))

    assert time.time() - store.list()[0].last_used < 60
    assert path_of(store, meta).read_bytes() == before


def test_use_of_one_of_two_skills_with_the_same_text_is_that_ones(store: ArtifactStore) -> None:
    first, second = (put(store, age_days=9, skill=name) for name in ("first", "second"))
    assert first.key == second.key
    store.touch_used(path_of(store, second))
    now = time.time()
    used = {one.meta.skill: now - one.last_used < 86400 for one in store.list() if one.meta is not None}
    assert used == {"first": False, "second": True}


def test_gc_removes_the_least_recently_used_first(store: ArtifactStore) -> None:
    for age, name in ((3, "c"), (1, "a"), (2, "b"), (4, "d")):
        put(store, age, skill=name)
    size = store.total_bytes() // 4

    would = store.gc(max_bytes=2 * size, dry_run=True)
    assert [one.meta.skill for one in would if one.meta] == ["d", "c"]
    assert names(store) == ["a", "b", "c", "d"]

    assert store.gc(max_bytes=2 * size) == would
    assert names(store) == ["a", "b"]
    assert store.gc(max_bytes=2 * size) == ()
    assert store.gc() == ()


def test_gc_removes_what_was_not_used_for_long_but_not_what_is_kept(store: ArtifactStore) -> None:
    for age, name in ((10, "old"), (10, "kept"), (1, "new")):
        put(store, age, skill=name)

    assert len(store.gc(older_than=timedelta(days=5), keep=["kept"])) == 1
    assert names(store) == ["kept", "new"]
    assert len(store.gc(max_bytes=0, keep=["kept"])) == 1
    assert names(store) == ["kept"]


def test_gc_removes_leftovers_of_interrupted_writes_but_not_writes_under_way(store: ArtifactStore) -> None:
    folder = path_of(store, put(store)).parent
    for name, age in ((".kvnotes-old.tmp", 7200), (".kvnotes-new.tmp", 60)):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (time.time() - age,) * 2)

    assert [one.path.name for one in store.gc()] == [".kvnotes-old.tmp"]
    assert sorted(path.name for path in folder.glob(".*")) == [".kvnotes-new.tmp"]
    assert len(store.list()) == 1


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")
def test_links_are_not_followed(store: ArtifactStore, tmp_path: Path) -> None:
    meta = put(store, skill="real")
    outside = tmp_path / "outside"
    outside.mkdir()
    target = outside / f"x-{'1' * 16}.safetensors"
    target.write_bytes(path_of(store, meta).read_bytes())
    (store.directory / "linked").symlink_to(outside)
    (path_of(store, meta).parent / f"y-{'2' * 16}.safetensors").symlink_to(target)

    assert names(store) == ["real"]
    store.gc(max_bytes=0)
    assert target.exists()


def test_files_that_vanish_during_a_listing_are_left_out(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    path = path_of(store, put(store))
    real = os.scandir

    def scandir(folder: Path) -> object:
        with real(folder) as scan:
            entries = list(scan)
        path.unlink(missing_ok=True)
        return contextlib.nullcontext(entries)

    monkeypatch.setattr(os, "scandir", scandir)

    assert store.list() == ()
    assert store.total_bytes() == 0


BUSY = """
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.artifacts.samples import LAYOUTS, META, random_rows
from kvnotes_local.artifacts.writer import write_artifact
from kvnotes_local.skills.artifact_store import ArtifactStore
store = ArtifactStore(Path(sys.argv[2]))
for round in range(30):
    meta = replace(META, lead=str(round % 5))
    write_artifact(store.path(meta.key, meta.skill, meta.model_fingerprint), meta, random_rows(*LAYOUTS["plain"]))
    store.touch_used(store.path(meta.key, meta.skill, meta.model_fingerprint))
    assert all(not one.problem for one in store.list())
    store.total_bytes()
    store.gc(max_bytes=20_000)
    store.remove(meta.key)
print("done")
"""


def test_two_processes_may_write_list_and_clean_up_at_once(store: ArtifactStore) -> None:
    command = [sys.executable, "-c", BUSY, str(REPOSITORY), str(store.directory)]
    busy = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]

    assert [process.communicate(timeout=60)[0] for process in busy] == ["done\n"] * 2
