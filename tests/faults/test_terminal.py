"""Nothing that a model, a skill, a file name or a stored chat says is acted on by the terminal."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvnotes_local.notebook.segment import Freshness, Kind, Run, Segment
from kvnotes_local.notebook.store.chats import ChatStore
from kvnotes_local.notebook.store.params import ChatParams
from kvnotes_local.terminal_text import safe_json
from tests.conftest import Run as CommandRun
from tests.zoo import zoo_model

Kvnotes = Callable[..., CommandRun]
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u2066\x7f"


def assert_harmless(run: CommandRun) -> None:
    assert not CONTROLS.search(run.out), CONTROLS.search(run.out)
    assert not CONTROLS.search(run.err), CONTROLS.search(run.err)


def test_what_a_model_says_is_shown_without_its_controls_and_stored_with_them(
    kvnotes: Kvnotes, zoo_directory: Path, tmp_path: Path
) -> None:
    """A random model at a high temperature draws every byte there is."""
    model = zoo_model("llama", zoo_directory)
    ask = ("ask", "Hi", "--model", model, "--chat", "new", "--max-tokens", 400, "--temperature", 50, "--threads", 1)
    run = kvnotes(*ask)
    assert run.code == 0, run.err
    assert_harmless(run)
    store = ChatStore(tmp_path / "data" / "chats.sqlite")
    texts = [store.load(chat.id).segments[-1].text for chat in store.list()]
    assert all(CONTROLS.search(text) for text in texts), "the model has to have said something harmful"


def test_stored_chats_are_shown_without_controls(kvnotes: Kvnotes, tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "data" / "chats.sqlite")
    turn = Segment(Kind.USER, (1,), f"heron {EVIL}", name=EVIL, content_stop=1, runs=(Run(1, Freshness.FRESH),))
    store.save("0badcafe", [turn], "say", new=(EVIL, "f" * 64, ChatParams()))
    store.close()
    for command in (
        ["list"],
        ["show", "0bad"],
        ["search", "heron"],
        ["export", "0bad", "--format", "json"],
    ):
        run = kvnotes("chats", *command)
        assert run.code == 0, run.err
        assert_harmless(run)
        assert "heron" in run.out
    document = kvnotes("chats", "show", "0bad", "--json")
    assert_harmless(document)
    assert json.loads(document.out)["segments"][0]["text"] == f"heron {EVIL}"


def test_names_of_files_are_shown_without_controls(kvnotes: Kvnotes, zoo_directory: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    name = f"evil{EVIL.replace('/', '')}.gguf"
    try:
        shutil.copy(zoo_model("llama", zoo_directory), folder / name)
    except OSError:
        pytest.skip("this file system takes no such names")
    (folder / f"bad{EVIL}.gguf").write_bytes(b"no model")
    env = {"KVNOTES_MODELS": str(folder)}
    for command in (
        ["models", "list"],
        ["models", "info", folder / f"bad{EVIL}.gguf"],
        ["ask", "Hi", "--model", folder / f"bad{EVIL}.gguf"],
        ["run", folder / EVIL],
        ["ask", "Hi", "--model", folder / name, "--skill", EVIL, "--n-ctx", 512],
    ):
        assert_harmless(kvnotes(*command, env=env))


def test_json_keeps_its_value() -> None:
    text = f"a{EVIL}\U000e0041\U0001f600b"
    written = safe_json(json.dumps({"x": text}, ensure_ascii=False))
    assert json.loads(written) == {"x": text}
    assert not CONTROLS.search(written)
    assert "\U000e0041" not in written
