"""What a remark on a skill is, and the lines that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from kvnotes_local.skills.code_ranges import code_ranges
from kvnotes_local.skills.skill import Skill


class Code(StrEnum):
    """What a finding is about; stable, for scripts."""

    BROKEN = "broken"
    FORMAT = "format"
    TOO_SHORT = "too-short"
    TOO_LONG = "too-long"
    CROWDED = "crowded"
    WINDOW = "window"
    ELSEWHERE = "elsewhere"
    CHAT = "chat"
    DATE = "date"
    SUBSTITUTION = "substitution"
    COMMAND = "command"
    FIELD_SPACES = "field-spaces"
    FIELD_DEFAULT = "field-default"
    FIELD_CONFLICT = "field-conflict"
    FIELD_IN_CODE = "field-in-code"
    FIELD_BARS = "field-bars"
    FIELD_TYPO = "field-typo"
    MARKUP = "markup"
    INVISIBLE = "invisible"
    QUESTIONS = "questions"


@dataclass(frozen=True)
class Finding:
    """One remark. ``line`` counts from 1 in the SKILL.md; 0 is for remarks about other files or several skills at once."""

    line: int
    code: Code
    message: str
    skill: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a skill's body. ``number``: in the file. ``prose``: the line with blanks in place of its code.

    ``is_fenced``: the line is part of a fence, or one of its ends.
    """

    number: int
    raw: str
    prose: str
    is_fenced: bool

    @property
    def code(self) -> str:
        """The line with blanks in place of what is no code."""
        return "".join(char if shown == " " else " " for char, shown in zip(self.raw, self.prose, strict=True))


def read_lines(skill: Skill) -> Iterator[Line]:
    """The lines of a skill's body."""
    shown = list(skill.body)
    fenced: set[int] = set()
    for start, stop, is_fence in code_ranges(skill.body):
        shown[start:stop] = ["\n" if char == "\n" else " " for char in shown[start:stop]]
        if is_fence:
            first = skill.body.count("\n", 0, start)
            fenced.update(range(first, first + skill.body[start:stop].removesuffix("\n").count("\n") + 1))
    for number, (raw, prose) in enumerate(zip(skill.body.split("\n"), "".join(shown).split("\n"), strict=True)):
        yield Line(number + skill.body_line, raw, prose, number in fenced)
