"""``kvnotes skills new``: a skill to start from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from kvnotes_local.cli.options import SkillsDirOption
from kvnotes_local.cli.output import Output
from kvnotes_local.errors import SkillError

_SCAFFOLD = """\
---
name: {name}
description: What this is, in a sentence. Use when … (this is what decides whether the skill is offered).
license: MIT
metadata:
  kvnotes.pin: "false"
---

# {title}

State the rules one by one, each complete in itself: the model reads this page once, without your chat.

- A value that changes now and then is a field: refunds are possible within {{{{refund window|30 days}}}}.
- Name things; do not say "above" or "below".
- What matters most comes last.
"""


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
    from kvnotes_local.atomic_file import write_atomically
    from kvnotes_local.skills.frontmatter import normalize
    from kvnotes_local.skills.library import PLACES, SkillLibrary, project_root
    from kvnotes_local.skills.skill_file import FILE_NAME, MAX_NAME, find_skill_file

    if len(name) > MAX_NAME or not re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", name):
        raise SkillError(f"{name!r} is no name for a skill: use 1 to {MAX_NAME} of a-z, 0-9 and single hyphens.")
    folder = (to or project_root(Path.cwd(), Path.home()) / PLACES[0]) / name
    if folder.exists():
        raise SkillError(f"{folder} is there already; choose another name, or edit it.")
    text = _SCAFFOLD.format(name=name, title=name.replace("-", " ").capitalize())
    if like is not None:
        source = find_skill_file(SkillLibrary.default(skills_dir or []).get(like).folder)
        assert source is not None  # the library has just read it
        text = _renamed(normalize(source.read_text("utf-8")), name)
    try:
        write_atomically(folder / FILE_NAME, text)
    except OSError as error:
        raise SkillError(
            f"{folder} cannot be written ({error.strerror or error}); choose another folder with --to."
        ) from error
    there = f" --skills-dir {to}" if to is not None else ""
    output.text(
        f"{folder / FILE_NAME} is written. Edit it, then 'kvnotes skills lint {name}{there}' and 'skills compile {name}{there}'."
    )
    output.document({"name": name, "path": folder / FILE_NAME})


def _renamed(text: str, name: str) -> str:
    """The text of a SKILL.md with another name in its frontmatter, which may lack one."""
    from kvnotes_local.skills.frontmatter import split_frontmatter

    block, body, _ = split_frontmatter(text)
    changed, n = re.subn(r"(?m)^name:.*$", f"name: {name}", block, count=1)
    return f"---\n{changed if n else f'name: {name}' + chr(10) + block}\n---\n{body}"
