"""``kvnotes verify`` as users run it: table, JSON, exit codes, and what follows from a verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.evaluation.samples import SKILL_TEXT, deep_model, single_layer_model
from tests.skills.skill_samples import simple_skill
from tests.zoo import zoo_model

Kvnotes = Callable[..., Run]
KEYS = {
    "skill",
    "cosine_mean",
    "kl_mean",
    "noise_kl_mean",
    "top1_agreement",
    "noise_top1_agreement",
    "repair_tokens",
    "verdict",
}


@pytest.fixture
def arguments(tmp_path: Path, zoo_directory: Path) -> list[object]:
    skills = tmp_path / "skills"
    simple_skill(skills / "lamp", SKILL_TEXT)
    simple_skill(skills / "bike", "The red bike is in the yard.")
    small = ["--threads", 1, "--n-ctx", 4096, "--positions", 4, "--skills-dir", skills]
    return ["--model", single_layer_model(zoo_directory), *small]


def test_a_skill_that_passes_is_reported_for_machines_and_people(kvnotes: Kvnotes, arguments: list[object]) -> None:
    run = kvnotes("verify", "lamp", *arguments, "--json")
    assert run.code == 0, run.err
    (result,) = json.loads(run.out)["results"]
    assert set(result) >= KEYS
    assert result["verdict"] == "passed"
    assert result["repair_tokens"] == 0
    text = kvnotes("verify", "lamp", *arguments, "--isolate", "--kv-type", "q8_0")
    assert "may be spliced" in text.out
    assert "noise floor" in text.out


def is_spliced(run: Run) -> bool:
    """Is all of the skill behind its seam spliced?"""
    document = json.loads(run.out)
    (skill,) = (segment for segment in document["segments"] if segment["kind"] == "skill")
    spliced = document["tokens"]["spliced"]
    return 0 < spliced == skill["tokens"] - document["tokens"]["repaired"]


def test_a_gate_that_does_not_hold_is_exit_code_3_and_the_skill_is_read(
    kvnotes: Kvnotes, arguments: list[object], zoo_directory: Path
) -> None:
    deep = ["--model", deep_model(zoo_directory), *arguments[2:]]
    run = kvnotes("verify", "lamp", *deep, "--json")
    assert run.code == 3, run.err
    assert json.loads(run.out)["results"][0]["verdict"] == "failed"
    how = [*deep[:2], "--threads", 1, "--n-ctx", 4096, *deep[-2:], "--max-tokens", 1, "--json"]
    read = kvnotes("ask", "What?", "--skill", "lamp", *how)
    assert json.loads(read.out)["tokens"]["spliced"] == 0
    assert "measured to be worse" in read.err
    assert any("measured to be worse" in notice for notice in json.loads(read.out)["notices"])
    spliced = kvnotes("ask", "What?", "--skill", "lamp", "--splice-anyway", *how)
    assert is_spliced(spliced)


def test_skills_can_be_measured_together(kvnotes: Kvnotes, arguments: list[object]) -> None:
    run = kvnotes("verify", "--together", "lamp,bike", *arguments, "--json")
    assert run.code == 0, run.err
    (result,) = json.loads(run.out)["results"]
    assert result["skill"] == "lamp, bike"


def test_a_stored_chat_serves_as_context(kvnotes: Kvnotes, arguments: list[object]) -> None:
    how = [*arguments[:2], "--threads", 1, "--n-ctx", 4096, *arguments[-2:]]
    chat = json.loads(kvnotes("ask", "Hello", "--chat", "new", *how, "--max-tokens", 2, "--json").out)["chat_id"]
    run = kvnotes("verify", "lamp", "--chat", chat, *arguments, "--json")
    assert run.code == 0, run.err
    assert json.loads(run.out)["results"][0]["n_positions"] <= 8


@pytest.mark.parametrize(
    "wrong",
    [
        ["--together", "lamp"],
        ["lamp", "--together", "lamp,bike"],
        ["--together", "lamp,lamp"],
        ["lamp", "--all"],
    ],
)
def test_requests_that_make_no_sense_are_usage_errors(
    kvnotes: Kvnotes, arguments: list[object], wrong: list[object]
) -> None:
    assert kvnotes("verify", *wrong, *arguments).code == 2


def test_models_that_do_not_splice_have_nothing_to_measure(
    kvnotes: Kvnotes, arguments: list[object], zoo_directory: Path
) -> None:
    run = kvnotes("verify", "lamp", "--model", zoo_model("mamba", zoo_directory), *arguments[2:])
    assert run.code == 1
    assert "nothing to measure" in run.err


def test_a_seam_that_was_asked_for_and_fails_leaves_splicing_as_it_was_and_says_so(
    kvnotes: Kvnotes, arguments: list[object], zoo_directory: Path
) -> None:
    deep = ["--model", deep_model(zoo_directory), *arguments[2:]]
    run = kvnotes("verify", "lamp", *deep, "--repair", 2)
    assert run.code == 3, run.err
    assert "not kept" in run.out
    assert "from now on" not in run.out
    how = [*deep[:2], "--threads", 1, "--n-ctx", 4096, *deep[-2:], "--max-tokens", 1, "--json"]
    assert is_spliced(kvnotes("ask", "What?", "--skill", "lamp", *how))


@pytest.mark.parametrize("broken", ["too long", "bad evals"])
def test_a_skill_that_cannot_be_measured_does_not_stop_the_others(
    kvnotes: Kvnotes, arguments: list[object], tmp_path: Path, broken: str
) -> None:
    folder = simple_skill(tmp_path / "skills" / "broken", SKILL_TEXT * (200 if broken == "too long" else 1))
    if broken == "bad evals":
        (folder / "evals.jsonl").write_text('{"ask": "What?", "expect": "It.", "choices": ["It."]}\n')
    run = kvnotes("verify", "broken", "lamp", *arguments, "--json")
    assert run.code == 1
    document = json.loads(run.out)
    assert [one["skill"] for one in document["results"]] == ["lamp"]
    assert [one["skill"] for one in document["problems"]] == ["broken"]
    assert "1 of 2 skills could not be measured: broken" in run.err
    if broken == "bad evals":  # known before anything was computed for it
        assert not list((tmp_path / "cache" / "artifacts").glob("*/broken-*"))


def test_questions_that_come_with_a_skill_may_be_open_and_those_left_out_are_told(
    kvnotes: Kvnotes, arguments: list[object], tmp_path: Path
) -> None:
    lines = [{"ask": "Say it again."}, {"ask": "What is it?", "expect": "A lamp.", "choices": ["A lamp.", "A bike."]}]
    path = tmp_path / "skills" / "lamp" / "evals.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    both = kvnotes("verify", "lamp", *arguments, "--json")
    assert json.loads(both.out)["results"][0]["decisions"] == 3  # the question with choices, in three chats
    one = kvnotes("verify", "lamp", *arguments, "--questions", 1)
    assert "1 of its 2 questions" in one.err
    assert "3 chats × 2 questions" in one.out  # that one and the bundled open one
