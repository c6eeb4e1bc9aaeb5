"""The whole program is killed at random moments of a scripted session: what was acknowledged is there, and it goes on."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from os import kill
from pathlib import Path

import pytest

from kvnotes_local.notebook.store.chats import ChatStore
from tests.faults.scripted_session import STEPS
from tests.zoo import zoo_model

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks and kills")
SKILLS = {"lamp": "The lamp is {{colour|green}}. " * 8, "quay": "The quay is long. " * 8}


class Sessions:
    """Starts sessions in a process that has everything imported."""

    def __init__(self, model: Path, skills: Path) -> None:
        command = [sys.executable, "-m", "tests.faults.scripted_session", str(model), str(skills)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, folder: Path, kill_after: float | None = None) -> tuple[list[str], float]:
        """What a session said, and how long it took; killed after so many seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{folder}\n")
        self.process.stdin.flush()
        pid = int(self.process.stdout.readline().split()[1])
        began = time.monotonic()
        if kill_after is not None:
            time.sleep(kill_after)  # the moment is random, nothing is waited for
            with suppress(ProcessLookupError):  # it may have come to its end
                kill(pid, signal.SIGKILL)
        said = []
        while (line := self.process.stdout.readline().strip()) != "gone":
            said.append(line)
        return said, time.monotonic() - began

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture(scope="module")
def sessions(zoo_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    skills = tmp_path_factory.mktemp("skills")
    for name, text in SKILLS.items():
        (skills / name).mkdir()
        (skills / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {name}\n---\n{text}\n")
    running = Sessions(zoo_model("llama", zoo_directory), skills)
    yield running
    running.close()


def transcript(folder: Path) -> list[tuple[str, str, tuple[int, ...]]]:
    """Kind, text and tokens of each segment of the only chat."""
    store = ChatStore(folder / "chats.sqlite")
    (chat,) = store.list()
    segments = store.load(chat.id).segments
    store.close()
    return [(segment.kind.value, segment.text, segment.tokens) for segment in segments]


def check_nothing_acknowledged_is_missing(folder: Path, acknowledged: list[str]) -> None:
    ChatStore(
        folder / "chats.sqlite"
    ).close()  # as every command does; it may have been killed before the tables were made
    db = sqlite3.connect(folder / "chats.sqlite")
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    operations = [what for (what,) in db.execute("SELECT what FROM operations ORDER BY number")]
    questions = [text for (text,) in db.execute("SELECT text FROM segments WHERE kind = 'user' ORDER BY number")]
    db.close()
    for step in STEPS:
        if step.what in acknowledged:
            assert step.what in (questions if step.is_question else operations), (step.what, operations)


def kill_often(sessions: Sessions, tmp_path: Path, times: int, seed: int) -> int:
    """Kill sessions at random moments; returns how many were completed all the same."""
    _, seconds = sessions.run(tmp_path / "reference")
    wanted = transcript(tmp_path / "reference")
    assert len(wanted) > 8
    rng = random.Random(seed)
    completed = 0
    folder, acknowledged, killed = tmp_path / "0", [], 0
    while killed < times or acknowledged:
        alive = killed >= times
        said, _ = sessions.run(folder, None if alive else rng.uniform(0, seconds))
        acknowledged += [line.removeprefix("done ") for line in said if line.startswith("done ")]
        killed += not alive
        if (folder / "chats.sqlite").exists():
            check_nothing_acknowledged_is_missing(folder, acknowledged)
        if "end" in said:
            assert transcript(folder) == wanted
            completed += 1
            folder, acknowledged = tmp_path / str(completed), []
        else:
            assert not alive, "a session that is left alone has to come to its end"
    return completed


def test_what_was_acknowledged_survives_a_kill_and_the_answers_are_those_of_an_undisturbed_run(
    sessions: Sessions, tmp_path: Path, again: int
) -> None:
    assert kill_often(sessions, tmp_path, times=50, seed=again) >= 4
