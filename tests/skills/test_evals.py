"""Questions that come with a skill: what is accepted, and that a wrong line is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvnotes_local.errors import SkillError
from kvnotes_local.skills.evals import SkillQuestion, load_questions
from kvnotes_local.skills.library import SkillLibrary
from kvnotes_local.skills.skill import Skill
from tests.skills.skill_samples import simple_skill


def skill_with(folder: Path, *lines: object) -> Skill:
    simple_skill(folder / "lamp")
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "lamp" / "evals.jsonl").write_text(text, "utf-8")
    return SkillLibrary([folder]).get("lamp")


def test_questions_are_decisions_or_open_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    decision = {"ask": "How long?", "expect": "Long.", "choices": ["Long.", "Short."]}
    skill = skill_with(tmp_path, "", decision, " ", {"ask": "Why?"})
    simple_skill(tmp_path / "bare")
    assert load_questions(SkillLibrary([tmp_path]).get("bare")) == ()
    assert load_questions(skill) == (SkillQuestion("How long?", "Long.", ("Long.", "Short.")), SkillQuestion("Why?"))


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        "{",
        "[" * 100_000,
        3,
        [1, 2],
        {"expect": "A.", "choices": ["A.", "B."]},
        {"ask": " "},
        {"ask": "Q", "expect": 1},
        {"ask": "Q", "choices": "A."},
        {"ask": "Q", "expect": "A.", "choices": ["A.", 3]},
        {"ask": "Q", "expect": "A.", "choices": ["A."]},
        {"ask": "Q", "expect": "A.", "choices": ["A.", "A."]},
        {"ask": "Q", "expect": "A.", "choices": ["A.", " A. "]},  # no model answers in blanks
        {"ask": "Q", "expect": "A.", "choices": ["A.", " "]},
        {"ask": "Q", "expect": "C.", "choices": ["A.", "B."]},
        {"ask": "Q", "choices": ["A.", "B."]},
    ],
    ids=lambda line: str(line)[:60],
)
def test_a_line_that_asks_nothing_or_decides_nothing_is_refused_by_its_number(tmp_path: Path, line: object) -> None:
    with pytest.raises(SkillError, match=r"Line 2 of .*evals\.jsonl"):
        load_questions(skill_with(tmp_path, {"ask": "Why?"}, line))
