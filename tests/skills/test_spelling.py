"""Names are found however their accents are spelled: taken apart, as macOS stores them (NFD), or put together (NFC)."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skill_samples import write_skill

from kvnotes_local.models.choice import resolve_model
from kvnotes_local.models.files import FoundModel, ModelSource
from kvnotes_local.skills.library import SkillLibrary
from kvnotes_local.skills.lint import lint
from kvnotes_local.skills.skill_file import load_reference
from kvnotes_local.skills.template import parse_template, render
from kvnotes_local.spelling import composed

FORMS: list[Callable[[str], str]] = [
    lambda name: unicodedata.normalize("NFC", name),
    lambda name: unicodedata.normalize("NFD", name),
]
spellings = pytest.mark.parametrize("stored", FORMS, ids=["NFC there", "NFD there"])
asked_for = pytest.mark.parametrize("asked", FORMS, ids=["NFC asked", "NFD asked"])


@spellings
@asked_for
@pytest.mark.parametrize("with_name", [True, False])
def test_a_skill_is_found_by_its_name_and_its_files_by_theirs(
    tmp_path: Path, stored: Callable[[str], str], asked: Callable[[str], str], with_name: bool
) -> None:
    name = "name: " + unicodedata.normalize("NFC", "café-règles") + "\n" if with_name else ""
    folder = write_skill(tmp_path / stored("café-règles"), f"---\n{name}description: x\n---\nBody.")
    (folder / stored("réf")).mkdir()
    (folder / stored("réf") / stored("été.md")).write_text("Summer.")
    library = SkillLibrary([tmp_path])
    skill = library.get(asked("café-règles"))
    assert skill.name == unicodedata.normalize("NFC", "café-règles")
    assert not any("differs from its folder" in warning for warning in skill.warnings)
    assert load_reference(skill, asked("réf/été.md")) == "Summer."
    part = library.get(asked("café-règles/réf/été.md"))
    assert (part.name, part.body) == (unicodedata.normalize("NFC", "café-règles/réf/été.md"), "Summer.")


@spellings
@asked_for
def test_a_broken_skill_is_said_to_be_broken(
    tmp_path: Path, stored: Callable[[str], str], asked: Callable[[str], str]
) -> None:
    write_skill(tmp_path / stored("café"), "no head")
    with pytest.raises(Exception, match="is broken"):
        SkillLibrary([tmp_path]).get(asked("café"))


@spellings
@asked_for
def test_a_field_gets_its_value(stored: Callable[[str], str], asked: Callable[[str], str]) -> None:
    pieces = parse_template(f"Within {{{{{stored('délai à régler')}|30 days}}}}.")
    values = {asked("délai à régler"): "9 days"}
    assert render(pieces, values) == "Within 9 days."


@spellings
def test_lint_takes_a_field_for_one(tmp_path: Path, stored: Callable[[str], str]) -> None:
    text = f"---\nname: a\ndescription: x\n---\nWithin {{{{{stored('délai')}|30 days}}}}. " + "More of it. " * 40
    write_skill(tmp_path / "a", text)
    assert lint(SkillLibrary([tmp_path]).get("a")) == []


@spellings
@asked_for
@pytest.mark.parametrize("part_of_name", ["modèle-é", "modèle", "MODÈLE-É"])
def test_a_model_is_found_by_its_name(
    stored: Callable[[str], str], asked: Callable[[str], str], part_of_name: str
) -> None:
    model = FoundModel(Path("x.gguf"), stored("modèle-é"), 1, ModelSource.GIVEN)
    assert resolve_model(asked(part_of_name), [model]) is model


@given(st.text())
def test_one_spelling_is_one_spelling(name: str) -> None:
    assert composed(unicodedata.normalize("NFD", name)) == composed(name) == composed(composed(name))
