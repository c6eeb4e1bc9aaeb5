"""Questions that come with a skill: ``evals.jsonl`` in its folder, one JSON object a line.

``{"ask": "How long is it?", "expect": "It is 30 days.", "choices": ["It is 30 days.", "It is 60 days."]}``: a model
that has read the skill should find ``expect`` the most likely of the choices. Without choices it is an open question, of
which the answers are compared token by token only.
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
    """A question with at least two choices, one of which is right (``expect``), or an open one with none."""

    ask: str
    expect: str = ""
    choices: tuple[str, ...] = ()


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
    if not isinstance(value, dict):
        raise SkillError(f'{where} is not a JSON object; write one such as {{"ask": "How long is it?"}}')
    ask, expect, choices = value.get("ask"), value.get("expect", ""), value.get("choices", [])
    if not (isinstance(ask, str) and ask.strip() and isinstance(expect, str) and _are_texts(choices)):
        raise SkillError(
            f'{where} needs "ask" as text; "expect" is a text and "choices" a list of texts, where they are given'
        )
    # Blanks around a choice make no other answer, and two that the model cannot tell apart are no decision.
    if choices and (len({choice.strip() for choice in choices}) < max(2, len(choices)) or expect not in choices):
        raise SkillError(f'{where} needs two or more different "choices", with "expect" among them')
    return SkillQuestion(ask, expect, tuple(choices))


def _are_texts(values: Any) -> TypeGuard[list[str]]:
    return isinstance(values, list) and all(isinstance(value, str) and value.strip() for value in values)
