"""``kvnotes skills new``: a skill to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvnotes_local.cli.options import SkillsDirOption
from kvnotes_local.cli.output import Output


def new_skill(
    name: Annotated[str, typer.Argument(help="Name: a-z, 0-9 and single hyphens.")],
    like: Annotated[
        str | None, typer.Option("--like", help="Begin with a copy of this skill, as refund-policy.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", file_okay=False, help="Folder of skills; default: .agents/skills of the project."),
    ] = None,
    skills_dir: SkillsDirOption = None,
    *,
    output: Output,
) -> None:
    """Write the SKILL.md of a new skill, to be filled in."""
    from kvnotes_local.skills.library import PLACES, SkillLibrary, project_root
    from kvnotes_local.skills.scaffold import write_new_skill

    source = None if like is None else SkillLibrary.default(skills_dir or []).get(like)
    path = write_new_skill(name, to or project_root(Path.cwd(), Path.home()) / PLACES[0], source)
    there = f" --skills-dir {to}" if to is not None else ""
    output.text(
        f"{path} is written. Edit it, then 'kvnotes skills lint {name}{there}' and 'skills compile {name}{there}'."
    )
    output.document({"name": name, "path": path})
