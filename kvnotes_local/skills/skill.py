"""A skill: a named text with fields, which is compiled and spliced. ``skill_file.py`` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kvnotes_local.skills.settings import SkillSettings
from kvnotes_local.skills.template import Piece, field_defaults, parse_template, render


@dataclass(frozen=True)
class SkillSummary:
    """What a listing shows; the body was not read.

    ``name`` and ``description`` are one line without control characters. ``extra`` holds unknown keys as read: strings,
    lists, dicts. ``warnings`` say what deviates from the format.
    """

    name: str
    description: str
    folder: Path
    license: str = ""
    compatibility: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    allowed_tools: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    settings: SkillSettings = field(default_factory=SkillSettings)


@dataclass(frozen=True)
class Skill(SkillSummary):
    """A skill with its text. ``body`` starts in line ``body_line`` of the file, for messages."""

    body: str = ""
    body_line: int = 1

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The body split into text and fields."""
        return tuple(parse_template(self.body, in_code=self.settings.fields_in_code))

    @property
    def fields(self) -> dict[str, str | None]:
        """Field names with their defaults, in order of appearance; None where a field has no default."""
        return field_defaults(self.pieces)

    def text(self, values: Mapping[str, str] | None = None) -> str:
        """The body with its fields filled in: what a model reads."""
        return render(self.pieces, values)
