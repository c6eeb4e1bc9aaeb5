"""Questions that come with a skill: ``evals.jsonl`` in its folder, one JSON object a line.

``{"ask": "How long is it?", "expect": "It is 30 days.", "choices": ["It is 30 days.", "It is 60 days."]}``: a model
that has read the skill should find ``expect`` the most likely of the choices.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeGuard

from kvnotes_local.errors import SkillError
from kvnotes_local.skills.skill import SkillSummary
from kvnotes_local.skills.skill_file import load_reference

FILE_NAME = "evals.jsonl"


@dataclass(frozen=True)
class SkillQuestion:
    """A question with at least two choices, one of which is right."""

    ask: str
    expect: str
    choices: tuple[str, ...]


def load_questions(skill: SkillSummary) -> tuple[SkillQuestion, ...]:
    """The questions of a skill; none if it has no ``evals.jsonl``.

    Raises:
        SkillError: a line is not such an object; the message names the line.
    """
    if not (skill.folder / FILE_NAME).exists():
        return ()
    lines = load_reference(skill, FILE_NAME).split("\n")
    return tuple(_question(skill, number, line) for number, line in enumerate(lines, start=1) if line.strip())


def _question(skill: SkillSummary, number: int, line: str) -> SkillQuestion:
    where = f"Line {number} of {skill.folder / FILE_NAME}"
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SkillError(f"{where} is not JSON ({str(error)[:80]}); write one object a line") from error
    ask, expect, choices = (value.get(key) if isinstance(value, dict) else None for key in ("ask", "expect", "choices"))
    if not (isinstance(ask, str) and ask.strip() and isinstance(expect, str) and _are_texts(choices)):
        raise SkillError(f'{where} needs "ask" and "expect" as text and "choices" as a list of texts')
    if len(choices) < 2 or len(set(choices)) != len(choices) or expect not in choices:
        raise SkillError(f'{where} needs two or more different "choices", with "expect" among them')
    return SkillQuestion(ask, expect, tuple(choices))


def _are_texts(values: Any) -> TypeGuard[list[str]]:
    return isinstance(values, list) and all(isinstance(value, str) and value for value in values)
