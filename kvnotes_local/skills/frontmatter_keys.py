"""A head that is not YAML as a whole, read key by key: one odd value costs nothing but itself."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvnotes_local.skills.frontmatter_yaml import FrontmatterError, clean, load_yaml

_TEXT_KEYS = ("name", "description", "license", "compatibility", "allowed-tools")
_MAPPING = "metadata"
# A key begins with nothing that means something to YAML, and a blank or the end of the line follows its colon.
_KEY = re.compile(
    r"(?P<key>\"[^\"\n]*\"|'[^'\n]*'|[^\s\-?:,\[\]{}#&*!|>'\"%@`](?:[^:\n]|:(?=\S))*?)[ \t]*:(?:[ \t]+(?P<value>.*)|[ \t]*)"
)
_BLOCK_SCALAR = re.compile(r"[|>][-+0-9]*[ \t]*(?:#.*)?")
# A character beyond the first 65,536 as JSON writes it: in two halves, of which YAML knows nothing.
_HALVES = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")


@dataclass(frozen=True)
class _Entry:
    """A key with its lines, and the number of the first one in the file. ``key`` is "" for lines before the first key."""

    key: str
    value: str
    lines: tuple[str, ...]
    line: int


def is_complete(loaded: dict[str, Any], block: str) -> bool:
    """Whether no text key was swallowed, as by a quote that an earlier value opens and a later one closes."""
    return all(key in loaded for key in _TEXT_KEYS if re.search(rf"^{key}:(?:\s|$)", block, re.MULTILINE))


def read_keys(block: str, first_line: int) -> tuple[dict[str, Any], list[str]]:
    """Keys of the block and warnings, as of ``read_frontmatter``. Raises FrontmatterError where there is no key at all."""
    keys: dict[str, Any] = {}
    warnings: list[str] = []
    for entry in _entries(block, first_line):
        try:
            keys.update(_load(entry, warnings))
        except FrontmatterError as error:
            if not entry.key:
                warnings.append(f"line {entry.line} is no 'key: value'; it is ignored")
            elif entry.key == _MAPPING and not entry.value:
                keys[entry.key], more = _metadata(entry)
                warnings += more
            elif entry.key in _TEXT_KEYS or entry.value:
                keys[entry.key] = _plain_text(entry)
                warnings.append(
                    f"{_shown(entry.key)} is not valid YAML as written in line {entry.line} (often a ': ' or a bracket in it); "
                    "it was read as plain text, put it in quotes"
                )
            else:
                warnings.append(
                    f"{_shown(entry.key)} in line {entry.line} is not valid YAML and is ignored: it {clean(str(error))}"
                )
    if not keys:
        raise FrontmatterError(
            f"has no 'key: value' lines from line {first_line} on, between its '---' lines; write at least name and description"
        )
    return keys, warnings


def _entries(block: str, first_line: int) -> Iterator[_Entry]:
    lines = _dedented(block.split("\n"))
    starts = [(at, match) for at, line in enumerate(lines) if (match := _KEY.fullmatch(line))]
    before = lines[: starts[0][0] if starts else len(lines)]
    for at, line in enumerate(before):
        if line.strip() and not line.lstrip().startswith("#"):
            yield _Entry("", "", (line,), first_line + at)
    for number, (at, match) in enumerate(starts):
        end = starts[number + 1][0] if number + 1 < len(starts) else len(lines)
        key = match["key"]
        key = key[1:-1] if key[:1] in ("'", '"') else key
        yield from _split_off(clean(key), (match["value"] or "").strip(), lines[at:end], first_line + at)


def _split_off(key: str, value: str, lines: list[str], first: int) -> Iterator[_Entry]:
    """One key; lines behind it that are not indented and belong to no list or comment are entries without a key.

    A description goes on to the next key: many are texts of several lines that nobody indented.
    """
    if key == "description":
        yield _Entry(key, value, tuple(lines), first)
        return
    beginnings = ("", " ", "\t", "#", "]", "}") if value else ("", " ", "\t", "#", "-", "[", "{", "]", "}")
    own = [at for at, line in enumerate(lines) if at == 0 or line[:1] in beginnings]
    yield _Entry(key, value, tuple(line if at in own else "" for at, line in enumerate(lines)), first)
    for at, line in enumerate(lines):
        if at not in own:
            yield _Entry("", "", (line,), first + at)


def _dedented(lines: list[str]) -> list[str]:
    """Lines without the blanks that stand before all keys."""
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    indent = len(first) - len(first.lstrip(" "))
    return [line[indent:] if line[:indent].isspace() else line for line in lines] if indent else lines


def _load(entry: _Entry, warnings: list[str]) -> dict[str, Any]:
    text = "\n".join(entry.lines)
    if not entry.key:
        raise FrontmatterError("is no key")
    try:
        return load_yaml(text, entry.line)
    except FrontmatterError:
        joined = _HALVES.sub(lambda halves: _whole(*halves.groups()), text)
        if joined == text:
            raise
        loaded = load_yaml(joined, entry.line)
    warnings.append(
        f"{_shown(entry.key)} in line {entry.line} has a character written as two \\u escapes, which is not valid YAML; "
        "it was read as meant, write the character itself"
    )
    return loaded


def _whole(high: str, low: str) -> str:
    return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00))


def _metadata(entry: _Entry) -> tuple[dict[str, Any], list[str]]:
    """The keys below ``metadata:``, where tabs indent like four blanks."""
    below = textwrap.dedent("\n".join(line.expandtabs(4) for line in entry.lines[1:]))
    try:
        found, warnings = read_keys(below, entry.line + 1)
    except FrontmatterError as error:
        return {}, [f"{entry.key} in line {entry.line} is ignored: it {error}"]
    if not warnings:
        warnings = [
            f"{entry.key} in line {entry.line} is not valid YAML (tabs?); it was read as meant, indent it with blanks"
        ]
    return found, warnings


def _plain_text(entry: _Entry) -> str:
    """The value as its author sees it: quotes around the whole and marks of a block text are none of it."""
    first, rest = entry.value, [line.strip() for line in entry.lines[1:]]
    if _BLOCK_SCALAR.fullmatch(first):
        first = ""
    text = clean(" ".join([first, *rest]))
    quote = text[:1]
    if quote in ("'", '"') and len(text) > 1 and text.endswith(quote):
        text = text[1:-1].replace("''", "'") if quote == "'" else text[1:-1].replace('\\"', '"')
    return text


def _shown(key: str) -> str:
    return key[:40]
