"""Finding skills in folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from skill_samples import simple_skill, write_skill

from kvnotes_local.errors import SkillError
from kvnotes_local.skills.library import MAX_DEPTH, SkillLibrary, bundled_skills

needs_links = pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")


def test_the_usual_places_are_searched_in_order(tmp_path: Path) -> None:
    given, project, home = tmp_path / "given", tmp_path / "project", tmp_path / "home"
    places = [given, *(base / kind / "skills" for base in (project, home) for kind in (".agents", ".claude"))]
    for number, place in enumerate(places):
        simple_skill(place / "same", description=f"from {number}")
        simple_skill(place / f"own-{number}")

    for first in range(len(places)):
        library = SkillLibrary.default([given] if first == 0 else [], cwd=project, home=home)
        by_name = {skill.name: skill for skill in library.skills}
        assert by_name["same"].description == f"from {first}"
        assert {f"own-{number}" for number in range(first, len(places))} <= by_name.keys()
        assert [one.skill.description for one in library.shadowed] == [
            f"from {n}" for n in range(first + 1, len(places))
        ]
        assert all(one.by.description == f"from {first}" for one in library.shadowed)
        (places[first] / "same" / "SKILL.md").unlink()


def test_the_sample_skills_come_last(tmp_path: Path) -> None:
    library = SkillLibrary.default(cwd=tmp_path, home=tmp_path)

    assert library.directories == (bundled_skills(),)
    assert "refund-policy" in {skill.name for skill in library.skills}


def test_broken_skills_are_listed_and_the_others_stay_usable(tmp_path: Path) -> None:
    simple_skill(tmp_path / "good")
    write_skill(tmp_path / "broken", "---\nname: broken\n---\nbody")
    write_skill(tmp_path / "binary", b"\x00\xff")
    write_skill(tmp_path / "large", b"---\nname: large\ndescription: d\n---\n" + b"text\n" * 210_000)

    library = SkillLibrary([tmp_path, tmp_path / "missing"])

    assert [skill.name for skill in library.skills] == ["good"]
    assert [problem.path.parent.name for problem in library.problems[:3]] == ["binary", "broken", "large"]
    assert "is larger than 1024 KiB" in library.problems[2].message
    assert "is not a folder" in library.problems[3].message
    with pytest.raises(SkillError, match=r"broken is broken: .* has no description; add"):
        library.get("broken")
    with pytest.raises(SkillError, match=r"broken is broken: .* has no description; add"):
        library.get("broken/references/x.md")


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path: Path) -> None:
    for name in ("refund-policy", "sql-tool", "python-style"):
        simple_skill(tmp_path / name)
    library = SkillLibrary([tmp_path])

    with pytest.raises(SkillError, match="no skill 'refund-polcy'; did you mean refund-policy"):
        library.get("refund-polcy")
    with pytest.raises(SkillError, match="did you mean sql-tool"):
        library.get("sql")
    with pytest.raises(SkillError, match="kvnotes skills list"):
        library.get("zzz")
    with pytest.raises(SkillError, match="no skills were found in"):
        SkillLibrary([tmp_path / "sql-tool" / "none"]).get("x")


def test_get_reads_the_text_as_it_is_now(tmp_path: Path) -> None:
    folder = simple_skill(tmp_path / "a", body="first")
    library = SkillLibrary([tmp_path])
    assert library.get("a").body == "first"

    simple_skill(folder, body="second")
    assert library.get("a").body == "second"
    (folder / "SKILL.md").unlink()
    with pytest.raises(SkillError):
        library.get("a")


def test_groups_and_single_folders_are_found_but_not_what_lies_too_deep(tmp_path: Path) -> None:
    simple_skill(tmp_path / "group" / "inner" / "deep")
    simple_skill(tmp_path / "one" / "examples" / "not-a-skill-of-its-own")
    simple_skill(tmp_path / "one")
    simple_skill(tmp_path.joinpath(*["d"] * MAX_DEPTH, "too-deep"))
    simple_skill(tmp_path / "node_modules" / "skipped")
    (tmp_path / "lower").mkdir()
    (tmp_path / "lower" / "skill.md").write_text("---\nname: lower\ndescription: x\n---\nb")

    assert [skill.name for skill in SkillLibrary([tmp_path]).skills] == ["deep", "lower", "one"]
    assert [skill.name for skill in SkillLibrary([tmp_path / "one"]).skills] == ["one"]


@needs_links
def test_links_in_circles_end_and_linked_skills_are_found(tmp_path: Path) -> None:
    simple_skill(tmp_path / "elsewhere" / "linked")
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "up").symlink_to(root)
    (root / "self").symlink_to(root / "self")
    (root / "linked").symlink_to(tmp_path / "elsewhere" / "linked")
    (root / "dangling").symlink_to(tmp_path / "nowhere")

    library = SkillLibrary([root])

    assert [skill.name for skill in library.skills] == ["linked"]
    assert library.problems == ()
    assert library.shadowed == ()


def test_a_place_that_is_searched_twice_shadows_nothing(tmp_path: Path) -> None:
    simple_skill(tmp_path / ".agents" / "skills" / "one")

    library = SkillLibrary.default([tmp_path / ".agents"], cwd=tmp_path, home=tmp_path)

    assert "one" in [skill.name for skill in library.skills]
    assert library.shadowed == ()


@needs_links
def test_a_pipe_named_skill_md_is_no_skill(tmp_path: Path) -> None:
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "SKILL.md")

    assert SkillLibrary([tmp_path]).skills == ()


@needs_links
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read everything")
def test_a_folder_without_read_permission_is_a_problem(tmp_path: Path) -> None:
    simple_skill(tmp_path / "a")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)

    library = SkillLibrary([tmp_path])

    assert [skill.name for skill in library.skills] == ["a"]
    assert "check its rights" in library.problems[0].message


def test_the_project_is_found_from_any_folder_below_it(tmp_path: Path) -> None:
    project, home = tmp_path / "home" / "work" / "project", tmp_path / "home"
    simple_skill(project / ".claude" / "skills" / "mine")
    simple_skill(home / ".agents" / "skills" / "users")
    deep = project / "src" / "deep"
    deep.mkdir(parents=True)

    assert {"mine", "users"} <= {skill.name for skill in SkillLibrary.default(cwd=deep, home=home).skills}
    (project / "src" / ".git").mkdir()  # a repository inside is a project of its own
    assert "mine" not in {skill.name for skill in SkillLibrary.default(cwd=deep, home=home).skills}
    outside = SkillLibrary.default(cwd=home / "work", home=home)
    assert outside.directories == (home / ".agents" / "skills", bundled_skills())
    assert SkillLibrary.default(cwd=home, home=home).directories == outside.directories


def test_a_file_of_a_skill_can_be_had_as_a_skill_of_its_own(tmp_path: Path) -> None:
    folder = simple_skill(tmp_path / "harbour")
    (folder / "references").mkdir()
    (folder / "references" / "ships.md").write_text("Ships of {{year|1911}}.\r\n\n")
    (folder / "references" / "empty.md").write_text("\n")
    library = SkillLibrary([tmp_path])

    part = library.get("harbour/references/ships.md")

    assert (part.name, part.body, part.fields) == (
        "harbour/references/ships.md",
        "Ships of {{year|1911}}.",
        {"year": "1911"},
    )
    for wrong, why in (
        ("harbour/references/none.md", "has no file"),
        ("harbour/../x", "is no file"),
        ("harbour/references/empty.md", "is empty"),
        ("other/references/ships.md", "no skill"),
    ):
        with pytest.raises(SkillError, match=why):
            library.get(wrong)
