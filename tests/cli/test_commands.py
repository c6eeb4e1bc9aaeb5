"""What the commands promise, run as users run them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.zoo import zoo_model

Kvnotes = Callable[..., Run]


def document(run: Run) -> dict:  # type: ignore[type-arg]
    assert run.code == 0, run.err
    return json.loads(run.out)  # type: ignore[no-any-return]


@pytest.mark.model
def test_demo_splices_faster_than_reading_and_to_the_same_logits(kvnotes: Kvnotes) -> None:
    first = document(kvnotes("demo", "--json"))
    assert first["status"] == "compiled"
    assert first["tokens"]["spliced"] > 1000
    assert first["tokens"]["prefilled"] < 100
    assert first["tokens"]["spliced"] + first["tokens"]["repaired"] == first["n_skill_tokens"]
    assert first["recompute"]["prefilled"] == first["n_skill_tokens"] + first["tokens"]["prefilled"]
    assert first["cosine"] >= 0.99
    again = document(kvnotes("skills", "compile", "refund-policy", "--json"))["artifacts"][0]
    assert again["status"] == "up to date"


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_ask_reports_where_its_tokens_came_from(
    kvnotes: Kvnotes, zoo_directory: Path, tmp_path: Path, kv_type: str
) -> None:
    folder = tmp_path / "skills" / "note"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: note\ndescription: d\n---\n" + "The {{colour|green}} lamp. " * 30)
    ask = ("ask", "Hi", "--model", zoo_model("llama", zoo_directory), "--skills-dir", folder.parent, "--max-tokens", 4)
    plain = document(kvnotes(*ask, "--json", "--kv-type", kv_type))
    spliced = document(kvnotes(*ask, "--json", "--kv-type", kv_type, "--skill", "note", "--repair", 4))
    assert plain["tokens"]["spliced"] == 0
    assert spliced["tokens"]["repaired"] == 4
    assert spliced["tokens"]["prefilled"] == plain["tokens"]["prefilled"]
    skill = next(segment for segment in spliced["segments"] if segment["kind"] == "skill")
    assert skill["tokens"] == spliced["tokens"]["spliced"] + 4
    assert spliced["ttft_ms"] > 0
    other = document(kvnotes(*ask, "--json", "--skill", "note", "--set", "colour=crimson"))
    assert next(s for s in other["segments"] if s["kind"] == "skill")["tokens"] != skill["tokens"]


def test_compile_lists_artifacts_and_does_nothing_twice(kvnotes: Kvnotes, zoo_directory: Path) -> None:
    compile_ = (
        "skills",
        "compile",
        "night-clerk",
        "--model",
        zoo_model("qwen2", zoo_directory),
        "--json",
        "--n-ctx",
        4096,
    )
    made = document(kvnotes(*compile_))["artifacts"][0]
    assert made["status"] == "compiled"
    assert Path(made["path"]).stat().st_size == made["bytes"] > made["n_tokens"]
    again = document(kvnotes(*compile_))["artifacts"][0]
    assert again["status"] == "up to date"
    listed = document(kvnotes("skills", "list", "--json"))["skills"]
    clerk = next(skill for skill in listed if skill["name"] == "night-clerk")
    assert clerk["artifacts"][0]["n_tokens"] == made["n_tokens"]
    half = document(kvnotes(*compile_, "--store", "q8_0"))["artifacts"][0]
    assert half["bytes"] < 0.6 * made["bytes"]


def test_models_are_found_where_people_keep_them(kvnotes: Kvnotes, zoo_directory: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "tiny.gguf").write_bytes(zoo_model("llama", zoo_directory).read_bytes())
    found = document(kvnotes("models", "list", "--json", env={"KVNOTES_MODELS": str(folder)}))["models"]
    assert {"tiny"} <= {model["name"] for model in found}
    info = document(kvnotes("models", "info", "tiny", "--json", env={"KVNOTES_MODELS": str(folder)}))
    assert info["class"] == "splice"
    assert info["rotation_residual"] < 1e-6


def test_doctor_looks_at_everything_and_its_exit_code_is_its_verdict(kvnotes: Kvnotes) -> None:
    run = kvnotes("doctor", "--json")
    report = json.loads(run.out)
    good = {check["name"]: check["good"] for check in report["checks"]}
    assert set(good) == {"machine", "llama.cpp", "fast buffers", "models", "skills", "places"}
    del good["fast buffers"]  # whether llama.cpp was built well for this machine's CPU is not for this test to say
    assert all(good.values())
    assert run.code == (0 if report["good"] else 1)


def test_json_is_one_document_and_nothing_else_is_on_stdout(kvnotes: Kvnotes) -> None:
    for command in (("skills", "list"), ("models", "list"), ("doctor",)):
        run = kvnotes(*command, "--json")
        json.loads(run.out)


def test_names_and_texts_never_bring_escape_sequences_to_the_terminal(kvnotes: Kvnotes, tmp_path: Path) -> None:
    folder = tmp_path / "skills" / "evil"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_bytes(b'---\nname: evil\ndescription: "x\\x1b[31m\\u202ered"\n---\ntext\n')
    run = kvnotes("skills", "list", "--skills-dir", folder.parent)
    assert run.code == 0
    assert "\x1b" not in run.out + run.err
    assert "\u202e" not in run.out


def test_models_that_were_added_are_found_by_name_until_they_are_removed(
    kvnotes: Kvnotes, zoo_directory: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "more models"
    folder.mkdir()
    os.link(zoo_model("llama", zoo_directory), folder / "mine.gguf")
    (folder / "broken.gguf").write_bytes(b"PK\3\4 no model")
    empty = tmp_path / "empty"
    empty.mkdir()

    def listed() -> Run:
        return kvnotes("models", "list")

    assert "mine" not in listed().out
    assert "mine" in kvnotes("models", "add", folder).out
    assert "was there already" in kvnotes("models", "add", folder).out
    assert "added" in next(line for line in listed().out.splitlines() if line.startswith("mine"))
    assert "broken: " in listed().err, "the reason why a file cannot be used is told"
    assert document(kvnotes("models", "info", "mine", "--json"))["path"] == str(folder / "mine.gguf")
    refused = [kvnotes("models", "add", path) for path in (tmp_path / "nothing", empty, folder / "broken.gguf")]
    assert [run.code for run in refused] == [1, 1, 1]
    assert "no GGUF model" in refused[1].err
    kvnotes("models", "add", "--remove", folder)
    assert "mine" not in listed().out
