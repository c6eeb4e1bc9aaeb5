"""Fields inside a skill or system text: ``Refunds within {{refund window|30 days}}.``

The rules, kept narrow because skills written for other tools are full of braces that must stay as they are:

- ``{{name|default}}`` is a field. The name starts with a letter and goes on with letters, digits, spaces and ``_-.'``
  (64 characters at most); the default is any text on the same line without braces and bars, and may be empty.
- Nothing inside code is a field, be it a fence or a code span: braces there are another tool's. A skill can say otherwise
  (``kvnotes.fields-in-code: "true"`` in its metadata).
- There is no space next to the braces or the bar: ``{{ name }}``, ``{{ x | upper }}`` and ``${{ x }}`` stay text.
- ``{{name}}`` is a field without a default: it stays as written until it is given a value.
- A backslash in front takes the meaning away: ``\\{{name|default}}`` renders as ``{{name|default}}``. A backslash that
  shall stand in front of a field is doubled. Backslashes anywhere else are just text.
- Anything malformed stays text. Values are inserted as they are; braces inside a value mean nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from kvnotes_local.skills.code_ranges import code_ranges
from kvnotes_local.spelling import composed

MAX_NAME = 64

ACCENTS = "\u0300-\u036f"
"""Of letters that were taken apart."""

_FIELD = re.compile(
    r"(?P<slashes>\\*)(?<!\$)\{\{"
    rf"(?P<name>[^\W\d_](?:[\w{ACCENTS} \-.']{{0,62}}[\w{ACCENTS}\-.'])?)"
    r"(?:\|(?P<default>(?:[^\s{}|](?:[^{}|\x00-\x1f\x7f\x85\u2028\u2029]*[^\s{}|])?)?))?"
    r"\}\}"
)


@dataclass(frozen=True)
class TextPiece:
    """Text that no one edits."""

    text: str


@dataclass(frozen=True)
class FieldPiece:
    """A named value; ``default`` is None for ``{{name}}``, which stays as written until it is given a value."""

    name: str
    default: str | None

    def value(self, values: Mapping[str, str]) -> str:
        """The text that stands here for these values."""
        if self.name in values:
            return values[self.name]
        return self.source if self.default is None else self.default

    @property
    def source(self) -> str:
        """The field as it is written in a text."""
        return f"{{{{{self.name}}}}}" if self.default is None else f"{{{{{self.name}|{self.default}}}}}"


Piece = TextPiece | FieldPiece


def parse_template(body: str, *, in_code: bool = False) -> list[Piece]:
    """Split a text into plain pieces and fields. Never fails; adjacent text is one piece, never an empty one.

    ``in_code``: fields inside code are fields, too.
    """
    pieces: list[Piece] = []
    text: list[str] = []
    end = 0
    for match in _matches(body, in_code):
        text.append(body[end : match.start()])
        end = match.end()
        slashes = len(match["slashes"])
        text.append("\\" * (slashes // 2))
        if slashes % 2:
            text.append(match[0][slashes:])
            continue
        _flush(text, pieces)
        pieces.append(FieldPiece(composed(match["name"]), match["default"]))
    text.append(body[end:])
    _flush(text, pieces)
    return pieces


def _matches(body: str, in_code: bool) -> Iterator[re.Match[str]]:
    """What is written as a field, also where backslashes take the meaning away."""
    matches = _FIELD.finditer(body)
    first = next(matches, None)
    if first is None:
        return
    code = [] if in_code else code_ranges(body)
    starts = [one.start for one in code]
    for match in chain([first], matches):
        before = bisect_right(starts, match.start("name")) - 1
        if before < 0 or code[before].stop <= match.start("name"):
            yield match


def _flush(text: list[str], pieces: list[Piece]) -> None:
    if joined := "".join(text):
        pieces.append(TextPiece(joined))
    text.clear()


def given_values(values: Mapping[str, str] | None) -> dict[str, str]:
    """Values by the names of fields in their one spelling."""
    return {composed(name): value for name, value in (values or {}).items()}


def render(pieces: Iterable[Piece], values: Mapping[str, str] | None = None) -> str:
    """The text with every field replaced by its value, else its default.

    Names in ``values`` that the text does not have are ignored, since one set of values serves several texts.
    """
    given = given_values(values)
    return "".join(piece.text if isinstance(piece, TextPiece) else piece.value(given) for piece in pieces)


def field_defaults(pieces: Sequence[Piece]) -> dict[str, str | None]:
    """Each field name with its default, in order of first appearance; the first default given counts."""
    defaults: dict[str, str | None] = {}
    for piece in pieces:
        if isinstance(piece, FieldPiece) and defaults.get(piece.name) is None:
            defaults[piece.name] = piece.default
    return defaults
