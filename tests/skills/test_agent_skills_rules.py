"""The published rules of the Agent Skills format, one by one: what fits them loads without a remark, what breaks them is
told, and nothing that other clients load is refused.

The rules (agentskills.io/specification): ``name`` 1 to 64 of a-z, 0-9 and hyphens, no hyphen at either end, no two in a row,
equal to the folder's name; ``description`` 1 to 1024 characters; ``compatibility`` at most 500; ``metadata`` maps strings to
strings; ``allowed-tools`` is separated by spaces.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from skill_samples import write_skill

from kvnotes_local.errors import SkillError
from kvnotes_local.skills.library import SkillLibrary, bundled_skills
from kvnotes_local.skills.skill import Skill
from kvnotes_local.skills.skill_file import load_skill


def load(tmp_path: Path, name: str = "pdf-forms", folder: str | None = None, **keys: str) -> Skill:
    lines = [f"name: {name}", *(f"{key.replace('_', '-')}: {value}" for key, value in keys.items())]
    if "description" not in keys:
        lines.append("description: Fills in forms. Use when a form is mentioned.")
    return load_skill(write_skill(tmp_path / (folder or name), "---\n" + "\n".join(lines) + "\n---\nFill in forms.\n"))


@pytest.mark.parametrize("name", ["a", "7", "pdf-forms", "a-1-b", "2fast", "x" * 64, "a-" * 31 + "ab"])
def test_names_that_keep_the_rules_load_without_remark(tmp_path: Path, name: str) -> None:
    skill = load(tmp_path, name)
    assert skill.name == name
    assert skill.warnings == ()


@pytest.mark.parametrize(
    "name", ["PDF", "-pdf", "pdf-", "pdf--forms", "pdf_forms", "pdf forms", "pdf.forms", "ünï", "x" * 65, "pdf/forms"]
)
def test_names_that_break_the_rules_are_told_and_load(tmp_path: Path, name: str) -> None:
    skill = load(tmp_path, name, folder="folder")
    assert skill.name == name
    assert any("breaks the rules" in warning for warning in skill.warnings)


def test_a_name_that_is_not_the_folders_is_told(tmp_path: Path) -> None:
    assert any("differs from its folder" in one for one in load(tmp_path, "pdf", folder="forms").warnings)


@pytest.mark.parametrize(("length", "told"), [(1, False), (1024, False), (1025, True)])
def test_descriptions_have_1_to_1024_characters(tmp_path: Path, length: int, told: bool) -> None:
    skill = load(tmp_path, description="é" * length)
    assert skill.description == "é" * length
    assert bool(skill.warnings) is told


@pytest.mark.parametrize("description", ["", '""', "null", '"   "'])
def test_a_skill_without_description_is_skipped_with_the_reason(tmp_path: Path, description: str) -> None:
    with pytest.raises(SkillError, match="has no description"):
        load(tmp_path, description=description)
    (problem,) = SkillLibrary([tmp_path]).problems
    assert "has no description" in problem.message


def test_a_colon_in_the_description_is_read_as_meant(tmp_path: Path) -> None:
    assert load(tmp_path, description="Use when: a form is near").description == "Use when: a form is near"


@pytest.mark.parametrize(("length", "told"), [(500, False), (501, True)])
def test_compatibility_has_at_most_500_characters(tmp_path: Path, length: int, told: bool) -> None:
    assert bool(load(tmp_path, compatibility="x" * length).warnings) is told


def test_optional_keys_are_read_and_unknown_ones_kept(tmp_path: Path) -> None:
    skill = load(
        tmp_path,
        license="Apache-2.0",
        allowed_tools="Bash(git:*) Read",
        metadata='{author: me, version: "1.0"}',
        x_y="z",
    )
    assert (skill.license, skill.allowed_tools) == ("Apache-2.0", ("Bash(git:*)", "Read"))
    assert skill.metadata == {"author": "me", "version": "1.0"}
    assert skill.extra == {"x-y": "z"}
    assert skill.warnings == ()


def test_the_bundled_skills_keep_every_rule() -> None:
    library = SkillLibrary([bundled_skills()])
    assert len(library.skills) == 6
    assert library.problems == ()
    assert [skill.name for skill in library.skills if skill.warnings] == []
