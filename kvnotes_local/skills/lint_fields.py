"""Remarks on the fields of a skill: those that disagree, and what looks like a field and is none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kvnotes_local.skills.lint_finding import Code, Finding, Line
from kvnotes_local.skills.skill import Skill
from kvnotes_local.skills.template import ACCENTS, MAX_NAME, FieldPiece, parse_template

# Braces around something with a bar in it, two of them on one side at least; the closing ones may be missing.
_WITH_BAR = re.compile(
    r"(?<![\\{$])(?P<open>\{\{?)(?P<name>[^{}|\n]*)\|(?P<rest>[^{}\n]*)(?P<close>\}\}?(?!\})|$)", re.MULTILINE
)
_SPACED_NAME = re.compile(r"(?<![\\{$])\{\{(?=\s|[^{}|]*\s\}\})\s*(?P<name>[^\W\d_][\w \-.']{0,63}?)\s*\}\}")
_NAME = re.compile(rf"[^\W\d_](?:[\w{ACCENTS} \-.']*[\w{ACCENTS}\-.'])?")
_IN_CODE = 'metadata: {kvnotes.fields-in-code: "true"}'


def lint_fields(skill: Skill, lines: Sequence[Line]) -> Iterator[Finding]:
    """Remarks by line, in the order of the lines."""
    first: dict[str, str] = {}
    for line in lines:
        if "{{" not in line.raw and "}}" not in line.raw:
            continue
        text = line.raw if skill.settings.fields_in_code else line.prose
        for code, message in (
            *_without_default(skill, text),
            *_conflicts(text, first),
            *(() if skill.settings.fields_in_code else _in_code(line)),
            *_almost(text),
        ):
            yield Finding(line.number, code, message, skill.name)


def _fields(text: str) -> Iterator[FieldPiece]:
    return (piece for piece in parse_template(text, in_code=True) if isinstance(piece, FieldPiece))


def _without_default(skill: Skill, text: str) -> Iterator[tuple[Code, str]]:
    for field in _fields(text):
        if field.default is None and not skill.fields.get(field.name):
            yield (
                Code.FIELD_DEFAULT,
                f"field {field.source} has no default, so the model reads the braces; write {{{{{field.name}|value}}}}",
            )


def _conflicts(text: str, first: dict[str, str]) -> Iterator[tuple[Code, str]]:
    for field in _fields(text):
        if field.default is None:
            continue
        known = first.setdefault(field.name, field.default)
        if known != field.default:
            yield (
                Code.FIELD_CONFLICT,
                f"field {field.name!r} has the default {field.default!r} here and {known!r} before; use one of them",
            )


def _in_code(line: Line) -> Iterator[tuple[Code, str]]:
    for field in _fields(line.code):
        if field.default is not None:
            yield (
                Code.FIELD_IN_CODE,
                f"{field.source} stands in code, so it is no field and is read as it stands; "
                f"with {_IN_CODE} the model reads {field.default!r} there",
            )


def _almost(text: str) -> Iterator[tuple[Code, str]]:
    """What was probably meant as a field, and what another tool's braces are taken for."""
    for match in _SPACED_NAME.finditer(text):
        field = FieldPiece(match["name"], "value").source
        yield Code.FIELD_SPACES, f"{match[0]} is no field, because of its spaces; write {field} if it shall be one"
    for match in _WITH_BAR.finditer(text):
        if next(_fields(match[0]), None) is not None:
            continue
        name, rest = match["name"].strip(), match["rest"].strip()
        is_name = bool(_NAME.fullmatch(name)) and len(name) <= MAX_NAME
        shown = f"{match[0].strip()} is no field"
        repaired = f"write {FieldPiece(name, rest).source} if it shall be one"
        if len(match["open"]) == 1 and len(match["close"]) != 2:
            continue  # nothing says that a field was meant
        if "|" in rest:
            if len(match["open"]) == len(match["close"]) == 2:
                yield Code.FIELD_BARS, f"{shown}, because of its second bar; the model reads it as it stands"
        elif len(match["open"]) != len(match["close"]):
            if is_name:
                yield Code.FIELD_TYPO, f"{shown}, because of its braces; {repaired}"
        elif not name:
            yield Code.FIELD_TYPO, f"{shown}, because it has no name; write {{{{name|{rest}}}}} if it shall be one"
        elif is_name:
            yield Code.FIELD_SPACES, f"{shown}, because of its spaces; {repaired}"
        elif match[0] == f"{{{{{name}|{rest}}}}}" and name[0].isalnum():
            yield (
                Code.FIELD_TYPO,
                f"{shown}, because of its name: a letter, then letters, digits, blanks and _-.', {MAX_NAME} at most",
            )
