"""A new skill to start from: a SKILL.md to be filled in, or a copy of another one."""

from __future__ import annotations

import re
from pathlib import Path

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.errors import SkillError
from kvnotes_local.skills.frontmatter import normalize, split_frontmatter
from kvnotes_local.skills.skill import Skill
from kvnotes_local.skills.skill_file import FILE_NAME, MAX_NAME, find_skill_file, is_skill_name

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


def write_new_skill(name: str, folder_of_skills: Path, like: Skill | None = None) -> Path:
    """Write ``<folder_of_skills>/<name>/SKILL.md``; its path. ``like``: begin with a copy of this skill's.

    Raises SkillError for what is no name, for a folder that is there already, and where nothing can be written.
    """
    if not is_skill_name(name):
        raise SkillError(f"{name!r} is no name for a skill: use 1 to {MAX_NAME} of a-z, 0-9 and single hyphens.")
    folder = folder_of_skills / name
    if folder.exists():
        raise SkillError(f"{folder} is there already; choose another name, or edit it.")
    text = _SCAFFOLD.format(name=name, title=name.replace("-", " ").capitalize())
    if like is not None:
        source = find_skill_file(like.folder)
        assert source is not None  # the library has just read it
        text = _renamed(normalize(source.read_text("utf-8")), name)
    try:
        write_atomically(folder / FILE_NAME, text)
    except OSError as error:
        raise SkillError(
            f"{folder} cannot be written ({error.strerror or error}); choose another folder with --to."
        ) from error
    return folder / FILE_NAME


def _renamed(text: str, name: str) -> str:
    """The text of a SKILL.md with another name in its frontmatter, which may lack one."""
    block, body, _ = split_frontmatter(text)
    changed, n = re.subn(r"(?m)^name:.*$", f"name: {name}", block, count=1)
    return f"---\n{changed if n else f'name: {name}' + chr(10) + block}\n---\n{body}"
