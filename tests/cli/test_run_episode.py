"""Scripted chats: every action, comparison with reading afresh, and clear words for files that are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Run
from tests.zoo import zoo_model

Kvnotes = Callable[..., Run]

EPISODE = """
system = "The limit is {{limit|900 euros}}."
[[step]]
say = "Hello"
answer = "Hello"
[[step]]
splice = "note"
repair = 2
[[step]]
set = { limit = "5 euros" }
level = "auto"
[[step]]
ask = "How much?"
max_tokens = 3
choices = ["Yes", "No"]
[[step]]
fork = 2
[[step]]
ask = "And in the fork?"
max_tokens = 2
[[step]]
undo = 1
[[step]]
ask = "Again?"
max_tokens = 2
"""


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    folder = tmp_path / "skills" / "note"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: note\ndescription: d\n---\nThe lamp is green.\n")
    return folder.parent


def test_an_episode_reports_each_step_and_compares_each_question(
    kvnotes: Kvnotes, zoo_directory: Path, tmp_path: Path, skills: Path
) -> None:
    file = tmp_path / "episode.toml"
    file.write_text(EPISODE)
    run = kvnotes(
        "run",
        file,
        "--compare",
        "--json",
        "--model",
        zoo_model("llama", zoo_directory),
        "--skills-dir",
        skills,
        "--n-ctx",
        1024,
    )
    assert run.code == 0, run.err
    steps = json.loads(run.out)["steps"]
    assert [step["action"] for step in steps] == ["say", "splice", "set", "ask", "fork", "ask", "undo", "ask"]
    asked = steps[3]
    assert asked["compared"]["decision"] in {"Yes", "No"}
    assert asked["proof"]["generated"] <= 3
    assert 0.5 < asked["compared"]["cosine"] <= 1.0
    # Nothing stale is in the fork's first two segments but the erratum is gone with the rest, and the question is fresh.
    assert steps[5]["compared"]["recompute_tokens"] < asked["compared"]["recompute_tokens"]


def test_a_wrong_episode_is_refused_before_a_model_is_loaded(kvnotes: Kvnotes, tmp_path: Path) -> None:
    file = tmp_path / "episode.toml"
    file.write_text("[[step]]\nask = 'x'\n[[step]]\nask = 'y'\nchoices = 'Yes'\n")
    for episode, words in ((file, ["step 2, choices", "two or more", '"Yes"']), (tmp_path / "none.toml", ["no file"])):
        run = kvnotes("run", episode, "--model", tmp_path / "no model")
        assert run.code == 1
        assert len(run.err.splitlines()) == 1
        assert "Errno" not in run.err
        for word in (str(episode), *words):
            assert word in run.err


def test_a_step_that_fails_is_named(kvnotes: Kvnotes, zoo_directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "episode.toml"
    file.write_text("[[step]]\nsay = 'x'\n[[step]]\ndrop = 'nothing'\n")
    run = kvnotes("run", file, "--model", zoo_model("llama", zoo_directory), "--n-ctx", 512)
    assert run.code == 1
    assert "Step 2" in run.err


@pytest.mark.model
def test_the_example_in_the_docs_plays(kvnotes: Kvnotes) -> None:
    run = kvnotes("run", REPOSITORY / "docs" / "examples" / "hotel.toml", "--json")
    assert run.code == 0, run.err
    replies = [step["reply"] for step in json.loads(run.out)["steps"] if step["reply"]]
    # What a model of 135M parameters makes of the edit is not promised; that it is asked four times is.
    assert len(replies) == 4
    assert "140" in replies[0]
