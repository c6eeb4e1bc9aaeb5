"""The disk is full, read-only, or emptied under our feet: said in words, and what was there stays."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvnotes_local.bounded_log import BoundedLog
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.segment import Kind
from kvnotes_local.notebook.store.chats import ChatStore
from kvnotes_local.notebook.stored_chat import ChatOptions, open_chat
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary
from tests.conftest import AnyEngine
from tests.zoo import zoo_model

MakeEngine = Callable[..., AnyEngine]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs limits of POSIX systems")


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    folder = tmp_path / "skills"
    for name in ("lamp", "quay"):
        (folder / name).mkdir(parents=True)
        text = f"The {name} is green. " * 12
        (folder / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {name}\n---\n{text}\n")
    return folder


@dataclass
class Home:
    """``kvnotes`` with folders of its own, and a limit on the size of the files that it may write."""

    folder: Path
    model: Path
    skills: Path

    def ask(
        self, *args: object, max_file_bytes: int | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        def limit() -> None:
            if max_file_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))

        places = {f"KVNOTES_{name.upper()}_DIR": str(self.folder / name) for name in ("cache", "data", "log", "config")}
        common = ["--model", self.model, "--skills-dir", self.skills, "--max-tokens", 3, "--n-ctx", 1024, "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "kvnotes_local", "ask", *map(str, [*args, *common, "--threads", 1])],
            env={**os.environ, **places, **(env or {})},
            capture_output=True,
            text=True,
            preexec_fn=limit,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def questions(self) -> list[str]:
        store = ChatStore(self.folder / "data" / "chats.sqlite")
        (chat,) = store.list()
        segments = store.load(chat.id).segments
        store.close()
        return [segment.text for segment in segments if segment.kind is Kind.USER]

    def leftovers(self) -> list[Path]:
        return [path for path in self.folder.rglob(".*") if path.is_file()]


@pytest.fixture
def home(tmp_path: Path, zoo_directory: Path, skills: Path) -> Home:
    return Home(tmp_path / "home", zoo_model("llama", zoo_directory), skills)


def test_no_room_for_an_artifact(home: Home) -> None:
    done = home.ask("Hi", "--skill", "lamp", max_file_bytes=40_000)
    assert done.returncode == 1
    assert "artifact" in done.stderr, done.stderr
    assert "--cache-dir" in done.stderr
    assert not home.leftovers()
    assert home.ask("Hi", "--skill", "lamp").returncode == 0


FIRST = "The first question is long enough for a state of some size. " * 6


def test_no_room_for_a_message_a_snapshot_and_the_log(home: Home) -> None:
    first = home.ask(FIRST, "--chat", "new")
    assert first.returncode == 0
    chat = json.loads(first.stdout)["chat_id"]
    database = home.folder / "data" / "chats.sqlite"
    # Enough to open the database, not for the pages that a message needs.
    done = home.ask("many words " * 30, "--chat", chat, max_file_bytes=34_000)
    assert done.returncode == 1
    assert "chats.sqlite" in done.stderr
    assert sqlite3.connect(database).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert home.questions() == [FIRST]
    # Room for the chat, none for its state: the chat goes on, from an older state or from none.
    done = home.ask("Second question", "--chat", chat, max_file_bytes=250_000)
    assert done.returncode == 0, done.stderr
    assert "not saved" in done.stderr
    assert home.questions() == [FIRST, "Second question"]
    assert not home.leftovers()
    assert home.ask("Third question", "--chat", chat).returncode == 0
    assert home.questions()[1:] == ["Second question", "Third question"]


def test_a_log_that_cannot_grow_stops_nothing(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log" / "llama.log", max_bytes=1000)
    for _ in range(100):
        log.write(b"x" * 99 + b"\n")
        assert log.path.stat().st_size <= 1000
    log.write(b"y" * 5000)
    assert log.path.stat().st_size == 1000
    shutil.rmtree(tmp_path / "log")
    log.write(b"gone")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 KB, where this user may make one."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("may not mount a file system here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_disk_that_is_really_full(home: Home, small_disk: Path) -> None:
    home.folder = small_disk
    done = home.ask("First question", "--chat", "new")
    assert done.returncode == 0, done.stderr
    (small_disk / "ballast").write_bytes(b"\0" * 20_000)
    with (small_disk / "ballast").open("ab", buffering=0) as ballast:
        try:
            while True:
                ballast.write(b"\0" * 512)
        except OSError:
            pass
    chat = json.loads(done.stdout)["chat_id"]
    for arguments in (["Lost?", "--chat", chat], ["Lost?", "--skill", "lamp"]):
        refused = home.ask(*arguments)
        assert refused.returncode == 1
        assert "disk" in refused.stderr, refused.stderr
    (small_disk / "ballast").unlink()
    done = home.ask("Second question", "--chat", chat)
    assert done.returncode == 0, done.stderr
    assert home.questions() == ["First question", "Second question"]


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a folder in which nobody may write")
def test_a_cache_that_cannot_be_written(home: Home) -> None:
    nowhere = {"KVNOTES_CACHE_DIR": "/sys/kernel"}
    done = home.ask("Hi", "--chat", "new", env=nowhere)
    assert done.returncode == 0, done.stderr
    assert "not saved" in done.stderr
    refused = home.ask("Hi", "--skill", "lamp", env=nowhere)
    assert refused.returncode == 1
    assert "--cache-dir" in refused.stderr
    assert "/sys/kernel" in refused.stderr


def notebook_on(engine: AnyEngine, skills: Path, cache: Path, store: ChatStore, chat: str = "new") -> Notebook:
    compiler = SkillCompiler(engine, ArtifactStore(cache / "artifacts"), n_leads=1)
    return open_chat(store, engine, chat, ChatOptions(library=SkillLibrary([skills]), compiler=compiler)).notebook


def test_the_cache_is_deleted_while_a_chat_is_open(tiny_engine: MakeEngine, skills: Path, tmp_path: Path) -> None:
    store, engine = ChatStore(tmp_path / "chats.sqlite"), tiny_engine()
    notebook = notebook_on(engine, skills, tmp_path / "cache", store)
    notebook.splice("lamp")
    notebook.ask("Hm?", max_tokens=3)
    shutil.rmtree(tmp_path / "cache")
    notebook.undo()
    notebook.redo()
    notebook.splice("quay")
    notebook.ask("Hm?", max_tokens=3)
    notebook.check()
    shutil.rmtree(tmp_path / "cache")
    (chat,) = store.list()
    again = notebook_on(tiny_engine(), skills, tmp_path / "cache", store, chat.id)
    assert again.tokens == notebook.tokens
    again.check()


@pytest.mark.parametrize("damage", ["cut", "flipped", "of another model"])
def test_a_chat_is_resumed_although_an_artifact_of_it_is_damaged(
    tiny_engine: MakeEngine, skills: Path, tmp_path: Path, damage: str
) -> None:
    store, engine = ChatStore(tmp_path / "chats.sqlite"), tiny_engine()
    notebook = notebook_on(engine, skills, tmp_path / "cache", store)
    notebook.splice("lamp")
    notebook.ask("Hm?", max_tokens=3)
    (path,) = (tmp_path / "cache" / "artifacts").glob("*/*.safetensors")
    good = path.read_bytes()
    if damage == "of another model":
        other = notebook_on(tiny_engine("qwen2"), skills, tmp_path / "other", store)
        other.splice("lamp")
        (theirs,) = (tmp_path / "other" / "artifacts").glob("*/*.safetensors")
        path.write_bytes(theirs.read_bytes())
    else:
        path.write_bytes(good[: len(good) // 2] if damage == "cut" else good[:-1] + bytes([good[-1] ^ 1]))
    chat = next(chat for chat in store.list() if chat.model_fingerprint == engine.info.fingerprint)
    again = notebook_on(engine, skills, tmp_path / "cache", store, chat.id)
    assert again.tokens == notebook.tokens
    again.check()
    again.ask("And?", max_tokens=3)


def test_two_programs_on_one_cache(tiny_engine: MakeEngine, skills: Path, tmp_path: Path) -> None:
    """Both compile the same skill, one removes what the other uses: each goes on."""
    store = ChatStore(tmp_path / "chats.sqlite")
    one, two = (notebook_on(tiny_engine(), skills, tmp_path / "cache", store) for _ in range(2))
    one.splice("lamp")
    two.splice("lamp")
    ArtifactStore(tmp_path / "cache" / "artifacts").gc(max_bytes=0)
    one.undo()
    one.splice("lamp")
    two.ask("Hm?", max_tokens=3)
    one.ask("Hm?", max_tokens=3)
    one.check()
    two.check()
