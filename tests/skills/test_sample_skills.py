"""The skills that come with kvnotes-local."""

from __future__ import annotations

import pytest

from kvnotes_local.skills.evals import load_questions
from kvnotes_local.skills.library import SkillLibrary, bundled_skills
from kvnotes_local.skills.lint import ModelLimits, lint, lint_library
from kvnotes_local.skills.skill import Skill

NAMES = ("harbor-lore", "night-clerk", "python-style", "refund-policy", "release-checklist", "sql-tool")


@pytest.fixture(scope="module")
def skills() -> dict[str, Skill]:
    library = SkillLibrary([bundled_skills()])
    assert library.problems == library.shadowed == ()
    return {one.name: library.get(one.name) for one in library.skills}


def test_they_are_all_there_and_without_remarks(skills: dict[str, Skill]) -> None:
    assert tuple(skills) == NAMES
    assert [finding for skill in skills.values() for finding in lint(skill, limits=ModelLimits(8192))] == []
    assert lint_library(skills.values()) == []


@pytest.mark.parametrize("name", NAMES)
def test_each_has_a_license_fields_and_questions(skills: dict[str, Skill], name: str) -> None:
    skill = skills[name]

    assert skill.license == "MIT"
    assert 1000 < len(skill.text()) < 9500
    assert all(skill.fields.values())
    assert 4 <= len(load_questions(skill)) <= 8


@pytest.mark.parametrize("name", NAMES)
def test_answers_follow_from_the_text_and_no_wrong_choice_is_a_default(skills: dict[str, Skill], name: str) -> None:
    skill = skills[name]
    text = skill.text().lower()
    for question in load_questions(skill):
        words = [word.strip(".,").lower() for word in question.expect.split()]
        distinct = [word for word in words if not all(word in choice.lower() for choice in question.choices)]
        assert distinct, question
        assert all(word in text for word in distinct if word not in ("no", "my", "name", "lighthouse")), question
        for wrong in set(question.choices) - {question.expect}:
            assert not any(f" {default}." in wrong for default in skill.fields.values()), question


def test_the_demo_policy_states_its_fields_once_each_in_its_rules(skills: dict[str, Skill]) -> None:
    fields = skills["refund-policy"].fields

    assert fields["refund window"] == "30 days"
    assert fields["approval limit"] == "200 euros"
    assert "The refund window is 14 days. It starts" in skills["refund-policy"].text({"refund window": "14 days"})
