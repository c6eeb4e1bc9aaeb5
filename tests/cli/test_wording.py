"""What the commands say is said once, in whole sentences, with the right number."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import kvnotes_local
from kvnotes_local.wording import counted
from tests.conftest import Run
from tests.zoo import zoo_model

Kvnotes = Callable[..., Run]
ONE_WITH_A_PLURAL = re.compile(r"(?<![\d.,])1 (?!ms\b)[a-z]+s\b")


def test_one_is_singular_and_everything_else_plural() -> None:
    assert [counted(n, "token") for n in (0, 1, 2, 1001)] == ["0 tokens", "1 token", "2 tokens", "1,001 tokens"]


NOUNS = "token|artifact|skill|file|chat|model|question|position|segment|field|turn|edit|day|remark|step|word|decision"
UNCOUNTED = re.compile(r"\{([^{}]*)\} (?:[a-z]+ )?(?:" + NOUNS + r")s(?![\w/])")


@pytest.mark.parametrize("part", ["cli", "notebook", "skills"])
def test_numbers_stand_before_their_nouns_by_way_of_counted(part: str) -> None:
    """What is said only now and then is not seen by a test that runs commands."""
    folder = Path(kvnotes_local.__file__).parent / part
    found = [
        f"{path.name}: {match[0]}"
        for path in sorted(folder.rglob("*.py"))
        for match in UNCOUNTED.finditer(re.sub(r'""".*?"""', "", path.read_text("utf-8"), flags=re.DOTALL))
        if "join(" not in match[1] and not match[1].isupper()
    ]
    assert found == []


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    folder = tmp_path / "skills" / "note"
    folder.mkdir(parents=True)
    text = "The {{lamp|green}} lamp is on. " + "Ships that come in at night look for it from afar. " * 10
    (folder / "SKILL.md").write_text(f"---\nname: note\ndescription: What the lamp is for.\n---\n{text}\n")
    return folder.parent


def test_no_command_says_one_of_something_in_the_plural(
    kvnotes_here: Kvnotes, zoo_directory: Path, tmp_path: Path, skills: Path
) -> None:
    model = ("--model", zoo_model("llama", zoo_directory))
    there = ("--skills-dir", skills)
    small = (*model, "--n-ctx", 2048, "--threads", 1)
    episode = tmp_path / "episode.toml"
    episode.write_text(
        "[[step]]\nsplice = 'note'\n[[step]]\nask = 'x'\nmax_tokens = 1\n[[step]]\nundo = 1\n[[step]]\nfork = 1\n"
    )
    tiny = tmp_path / "tiny" / "dot"
    tiny.mkdir(parents=True)
    (tiny / "SKILL.md").write_text("---\nname: dot\ndescription: d\n---\n.\n")
    said = ""
    for command in (
        ("skills", "compile", "note", *there, *small),
        ("run", episode, "--compare", *there, *small),
        ("ask", "Hi", "--chat", "new", "--max-tokens", 1, *small),
        ("skills", "lint", "dot", "--skills-dir", tiny.parent),
        ("skills", "lint", "note", *there),
        ("skills", "list"),
        ("skills", "list", *there),
        ("skills", "remove", "note", "--dry-run"),
        ("skills", "gc", "--max-bytes", "0", "--dry-run"),
        ("skills", "remove", "note"),
    ):
        run = kvnotes_here(*command)
        assert run.code == 0, (command, run.err)
        said += run.out + run.err
    for words in (
        "1 change taken back",
        "1 segment\n",
        "1 skill, ",
        "of 1 decision.",
        "1 artifact",
        "1 file",
        "1 token: ",
    ):
        assert words in said
    assert not ONE_WITH_A_PLURAL.findall(said), said


def test_a_problem_names_its_file_once(kvnotes_here: Kvnotes, skills: Path) -> None:
    file = skills / "note" / "SKILL.md"
    file.write_text("no frontmatter")
    run = kvnotes_here("skills", "list", "--skills-dir", skills)
    (line,) = (one for one in run.err.splitlines() if "does not start" in one)
    assert line.count(str(file)) == 1
    unknown = kvnotes_here("skills", "show", "nothing-of-this-name", "--skills-dir", skills)
    broken = kvnotes_here("skills", "show", "note", "--skills-dir", skills)
    for refused, words in ((unknown, "There is no skill"), (broken, "Skill note is broken")):
        assert refused.code == 1
        assert refused.err.startswith(words)
        assert refused.err.count(str(file)) <= 1
