"""Two uploads of a model in several files that differ in a later part: nothing of the one serves the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.skills.batches import write_skills
from tests.conftest import Run
from tests.shards import split_model
from tests.zoo import zoo_model

Kvnotes = Callable[..., Run]


@pytest.fixture
def uploads(zoo_directory: Path, tmp_path: Path) -> tuple[Path, Path]:
    whole = zoo_model("llama", zoo_directory)
    return split_model(whole, tmp_path / "one"), split_model(whole, tmp_path / "other", altered=[3])


def test_skills_compiled_with_one_upload_are_not_up_to_date_with_the_other(
    kvnotes_here: Kvnotes, tmp_path: Path, uploads: tuple[Path, Path]
) -> None:
    skills = write_skills(tmp_path / "skills", 1)

    def compile_with(model: Path) -> str:
        run = kvnotes_here(
            "skills", "compile", "skill-00", "--skills-dir", skills, "--threads", 1, "--model", model, "--json"
        )
        return str(json.loads(run.out)["artifacts"][0]["status"])

    one, other = uploads
    assert [compile_with(model) for model in (one, one, other, one, other)] == [
        "compiled",
        "up to date",
        "compiled",
        "up to date",
        "up to date",
    ]


def test_a_chat_with_one_upload_does_not_go_on_with_the_other(
    kvnotes_here: Kvnotes, uploads: tuple[Path, Path]
) -> None:
    one, other = uploads

    def ask(model: Path, chat: str) -> Run:
        more = ("--max-tokens", 2, "--n-ctx", 512, "--threads", 1, "--json")
        return kvnotes_here("ask", "Hi there, what is your name?", "--chat", chat, "--model", model, *more)

    chat = json.loads(ask(one, "new").out)["chat_id"]
    assert json.loads(ask(one, chat).out)["tokens"]["reused"] > 0
    moved = ask(other, chat)
    assert moved.code == 2
    assert "held with another model, whose file has other content" in moved.err
    assert json.loads(ask(other, "new").out)["tokens"]["reused"] == 0
