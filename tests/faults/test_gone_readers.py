"""Whoever read what a command prints has gone: nothing that was said is lost, and the chat's state neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.segment import Segment
from kvnotes_local.notebook.store.chats import ChatStore
from kvnotes_local.notebook.working_chat import Keeper
from tests.conftest import AnyEngine, Run, both_engines
from tests.zoo import zoo_model

Kvnotes = Callable[..., Run]
needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="needs pipes of POSIX systems")


@pytest.fixture
def ask(zoo_directory: Path) -> list[object]:
    model = zoo_model("llama", zoo_directory)
    return ["ask", "Tell me.", "--chat", "new", "--model", model, "--max-tokens", 300, "--n-ctx", 1024, "--threads", 1]


@needs_posix
def test_an_answer_whose_reader_goes_is_kept_as_far_as_it_came(
    kvnotes: Kvnotes, ask: list[object], tmp_path: Path
) -> None:
    """``kvnotes ask … | head -1``."""
    places = {f"KVNOTES_{name.upper()}_DIR": str(tmp_path / name) for name in ("cache", "data", "log", "config")}
    process = subprocess.Popen(
        [sys.executable, "-m", "kvnotes_local", *map(str, ask)],
        env={**os.environ, **places},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(1)
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(60) == 1
    assert b"Traceback" not in said
    store = ChatStore(tmp_path / "data" / "chats.sqlite")
    (chat,) = store.list()
    answer = store.load(chat.id).segments[-1]
    assert answer.stopped
    assert answer.text
    again = kvnotes(*ask, "--chat", chat.id, "--max-tokens", 1, "--json")
    assert json.loads(again.out)["restored"], again.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_notes_that_cannot_be_written_stop_nothing(ask: list[object], tmp_path: Path) -> None:
    places = {f"KVNOTES_{name.upper()}_DIR": str(tmp_path / name) for name in ("cache", "data", "log", "config")}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvnotes_local", *map(str, ask), "--max-tokens", "3"],
            env={**os.environ, **places},
            stdout=subprocess.PIPE,
            stderr=full,
            check=False,
        )
    assert done.returncode == 0
    assert done.stdout.strip()


@both_engines
@pytest.mark.parametrize("error", [BrokenPipeError, KeyboardInterrupt, ZeroDivisionError])
def test_what_was_said_before_a_listener_failed_is_kept(
    tiny_engine: Callable[..., AnyEngine], error: type[BaseException]
) -> None:
    stored: list[str] = []

    class Remembering(Keeper):
        def store(self, segments: tuple[Segment, ...], what: str) -> None:
            stored.append(segments[-1].text)

    notebook = Notebook(tiny_engine(), keeper=Remembering())
    heard: list[str] = []

    def listen(piece: str) -> None:
        heard.append(piece)
        if len(heard) == 5:
            raise error

    with pytest.raises(error):
        notebook.ask("Tell me.", max_tokens=40, on_text=listen)
    assert notebook.segments[-1].stopped
    assert stored[-1] == notebook.segments[-1].text == "".join(heard)
    notebook.check()
    assert notebook.ask("And now?", max_tokens=3).text is not None
    notebook.check()
