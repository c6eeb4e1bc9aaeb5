"""Large chats, libraries and artifacts: work grows with what is asked for, not with what is there."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvnotes_local.contract.protocol import Parked
from kvnotes_local.engine.sequences.state_shelf import DISK_LIMIT, ShelvedState, StateShelf
from kvnotes_local.errors import ArtifactError
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.segment import Freshness, Kind, Run, Segment
from kvnotes_local.notebook.store import chats as chat_store
from kvnotes_local.notebook.store.chats import ChatStore
from kvnotes_local.notebook.store.params import ChatParams
from kvnotes_local.notebook.stored_chat import Committer
from kvnotes_local.skills import library
from kvnotes_local.skills.library import SkillLibrary
from tests.conftest import MakeEngine, both_engines

N_MESSAGES = 10_000


def message(number: int) -> Segment:
    kind = Kind.USER if number % 2 == 0 else Kind.ASSISTANT
    tokens = tuple(range(number, number + 20))
    return Segment(kind, tokens, f"message {number} of the heron", content_stop=20, runs=(Run(20, Freshness.FRESH),))


@pytest.fixture(scope="module")
def long_chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ChatStore, tuple[Segment, ...]]]:
    store = ChatStore(tmp_path_factory.mktemp("long") / "chats.sqlite")
    segments = tuple(message(number) for number in range(N_MESSAGES))
    store.save("0badcafe", segments, "say", new=("model", "f" * 64, ChatParams()))
    yield store, segments
    store.close()


def test_one_more_message_in_a_chat_of_ten_thousand_looks_at_one_row(
    long_chat: tuple[ChatStore, tuple[Segment, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, segments = long_chat
    converted: list[Segment] = []
    real = chat_store.segment_to_row

    def counted(segment: Segment) -> tuple[object, ...]:
        converted.append(segment)
        return real(segment)

    monkeypatch.setattr(chat_store, "segment_to_row", counted)
    commit = Committer(store, "0badcafe", store.last_operation("0badcafe"), segments)
    longer = (*segments, message(N_MESSAGES))
    commit.store(longer, "say")
    assert converted == [longer[-1]]
    commit.store(segments, "undo")
    assert len(converted) == 1
    changed = (*segments[:5000], message(1), *segments[5001:])
    commit.store(changed, "edit")
    assert len(converted) == 1 + 5000
    assert store.load("0badcafe").segments == changed
    commit.store(segments, "undo")
    assert store.load("0badcafe").segments == segments
    assert len(store.search("5000")) == 1


def test_lists_and_searches_use_indices(long_chat: tuple[ChatStore, tuple[Segment, ...]]) -> None:
    store, _ = long_chat
    seen: list[str] = []
    store._db.set_trace_callback(seen.append)
    assert store.list()[0].n_segments == N_MESSAGES
    assert len(store.search("heron", limit=20)) == 20
    store.find("0bad")
    store.operations("0badcafe")
    store.last_operation("0badcafe")
    store._db.set_trace_callback(None)
    asked = [query for query in seen if query.startswith("SELECT")]  # the rest is FTS5 talking to itself
    assert len(asked) >= 5
    for query in asked:
        plan = [row[3] for row in store._db.execute("EXPLAIN QUERY PLAN " + query)]
        for step in plan:
            whole = step.startswith("SCAN") and "VIRTUAL TABLE" not in step and "USING" not in step
            assert not whole or step in {"SCAN chats"}, (query, plan)


def test_listing_two_thousand_skills_reads_each_head_once_and_no_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2000):
        folder = tmp_path / f"skill-{number}"
        folder.mkdir()
        (folder / "SKILL.md").write_text(f"---\nname: skill-{number}\ndescription: d\n---\n" + "body " * 20)
    read: list[Path] = []
    real = library.load_summary

    def counted(path: Path) -> object:
        read.append(path)
        return real(path)

    monkeypatch.setattr(library, "load_summary", counted)
    skills = SkillLibrary([tmp_path])
    assert len(skills.skills) == 2000
    skills.get("skill-1999")
    assert len(skills.skills) == 2000
    assert len(read) == 2000


@pytest.fixture
def shelf(tmp_path: Path) -> StateShelf:
    """A shelf for two and a half states in memory and as many on disk."""

    def save(path: Path, tokens: tuple[int, ...], blob: memoryview) -> int:
        path.write_bytes(blob)
        return blob.nbytes

    def load(path: Path) -> tuple[tuple[int, ...], memoryview]:
        if not path.exists():
            raise ArtifactError("is not there")
        return (1,), memoryview(path.read_bytes())

    return StateShelf(save, load, tmp_path, memory_limit=250, disk_limit=250)


def test_states_that_are_put_aside_have_a_limit_and_it_is_told_how_many_went(shelf: StateShelf, tmp_path: Path) -> None:
    forgotten = 0
    for number in range(8):
        parked = shelf.put(f"chat {number}", ShelvedState((1,), memoryview(bytes(100))))
        assert parked.kept
        forgotten += parked.forgotten
        assert shelf.n_bytes <= 250
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 250
    assert forgotten == 8 - 2 - 2
    assert shelf.take("chat 7") is not None
    assert shelf.take("chat 0") is None
    assert shelf.put("a giant", ShelvedState((1,), memoryview(bytes(300)))) == Parked(False, 1)


def test_what_a_killed_program_left_of_a_state_goes_but_not_what_is_being_written(
    shelf: StateShelf, tmp_path: Path
) -> None:
    left, fresh = tmp_path / ".kvnotes-old.tmp", tmp_path / ".kvnotes-new.tmp"
    for path in (left, fresh):
        path.write_bytes(bytes(200))
    os.utime(left, (0, 0))
    assert shelf.keep("chat", ShelvedState((1,), memoryview(bytes(100)))).kept
    assert not left.exists()
    assert fresh.exists()


@pytest.fixture
def states(measurements: Path) -> Iterator[Path]:
    """Where the engines keep states; empty before and after."""
    folder = measurements / "states"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@both_engines
def test_the_user_is_told_once_when_saved_states_go(tiny_engine: MakeEngine, states: Path) -> None:
    """The limit is that of the real program: a file that seems large is enough, no byte of it is written."""
    large = states / "0123456789abcdef01234567.safetensors"
    with large.open("wb") as file:
        file.truncate(DISK_LIMIT)
    os.utime(large, (0, 0))
    notices: list[str] = []
    for name in ("first", "second"):
        notebook = Notebook(tiny_engine(), on_notice=notices.append)
        notebook.say("Hm?", "Yes.")
        notebook.read()
        assert notebook.park(name, on_disk=True)
    (notice,) = notices
    assert "1 other chat" in notice
    assert "read again" in notice
    assert not large.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_the_database_and_its_companions_are_for_their_user_only(
    long_chat: tuple[ChatStore, tuple[Segment, ...]],
) -> None:
    store, _ = long_chat
    files = list(store.path.parent.iterdir())
    assert {path.name for path in files} >= {"chats.sqlite", "chats.sqlite-wal"}
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
