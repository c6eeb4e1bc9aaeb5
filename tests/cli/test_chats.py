"""Stored chats on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.zoo import zoo_model


@pytest.mark.parametrize("given", [False, True], ids=["usual cache", "--cache-dir"])
def test_a_removed_chat_leaves_nothing_and_others_keep_their_state(
    kvnotes: Callable[..., Run], zoo_directory: Path, tmp_path: Path, given: bool
) -> None:
    cache = ("--cache-dir", tmp_path / "elsewhere") if given else ()
    states = (tmp_path / ("elsewhere" if given else "cache")) / "states"
    ask = (
        "ask",
        "Hi",
        "--model",
        zoo_model("llama", zoo_directory),
        "--n-ctx",
        512,
        "--max-tokens",
        1,
        *cache,
        "--json",
    )
    first, second = (json.loads(kvnotes(*ask, "--chat", "new").out)["chat_id"] for _ in range(2))
    assert len(list(states.iterdir())) == 2
    run = kvnotes("chats", "remove", first, *cache)
    assert run.code == 0, run.err
    assert len(list(states.iterdir())) == 1
    assert json.loads(kvnotes(*ask, "--chat", second).out)["restored"]
    assert kvnotes("chats", "remove", second, *cache).code == 0
    assert not list(states.iterdir())
    assert json.loads(kvnotes("chats", "list", "--json").out)["chats"] == []
