"""The head of a SKILL.md: a YAML block between two ``---`` lines. What is not quite YAML is read key by key."""

from __future__ import annotations

import re
from typing import Any

from kvnotes_local.skills.frontmatter_keys import is_complete, read_keys
from kvnotes_local.skills.frontmatter_yaml import FrontmatterError, clean, load_yaml

MAX_FRONTMATTER_BYTES = 64 * 1024

_BLOCK_END = re.compile(r"\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)")
_LINE_BREAKS = re.compile(r"\r\n?")
# No ': ' and no ' #' inside, and nothing at the start that means something to YAML.
_SIMPLE_LINE = re.compile(
    r"""(\ \ )?([A-Za-z][A-Za-z0-9_.-]*):(?:\ (?:
        ([A-Za-z0-9][!-9;-~]*(?:(?::(?=[!-~])|\ (?=[!"$-~]))[!-9;-~]*)*)
        | '([ -&(-~]*)' | "([ !#-[\]-~]*)"
    ))?""",
    re.VERBOSE,
)


def normalize(text: str) -> str:
    """Drop a byte-order mark and make every line end in a line feed."""
    text = text.removeprefix("\ufeff")
    return _LINE_BREAKS.sub("\n", text) if "\r" in text else text


def split_frontmatter(text: str) -> tuple[str, str, int]:
    """Split a normalized SKILL.md into YAML block, body, and the line number (from 1) at which the body starts.

    Raises:
        FrontmatterError: there is no block, it does not end, or it is larger than 64 KiB.
    """
    start = len(text) - len(text.lstrip("\n \t"))
    first = text.find("\n", start)
    if text[start : first if first >= 0 else None].rstrip() != "---":
        begins = clean(text[start : first if first >= 0 else None])[:40]
        raise FrontmatterError(
            f"does not start with a '---' line, but line {text.count(chr(10), 0, start) + 1} is {begins!r}; "
            "put name and description between two such lines"
        )
    # The line feed before the block is part of the search, so that an empty block is found too.
    end = _BLOCK_END.search(text, first, start + MAX_FRONTMATTER_BYTES + 16)
    if end is not None and first >= 0:
        block = text[first + 1 : end.start() + 1].removesuffix("\n")
        if len(block) * 4 > MAX_FRONTMATTER_BYTES and len(block.encode("utf-8")) > MAX_FRONTMATTER_BYTES:
            raise FrontmatterError(f"has more than {MAX_FRONTMATTER_BYTES // 1024} KiB of frontmatter; shorten it")
        return block, text[end.end() :], text.count("\n", 0, end.end()) + 1
    if len(text) - start > MAX_FRONTMATTER_BYTES:
        raise FrontmatterError(f"has no closing '---' line within the first {MAX_FRONTMATTER_BYTES // 1024} KiB")
    raise FrontmatterError("has no second '---' line that closes name and description; add one before the instructions")


def read_frontmatter(block: str, first_line: int = 2) -> tuple[dict[str, Any], list[str]]:
    """Keys of the block, with strings, lists and dicts as values, and warnings that name the line.

    A key whose value is not YAML, such as ``description: Use when: asked`` or ``globs: *.ts``, is read as plain text and costs
    the other keys nothing. ``first_line`` is the block's line in the file, for messages.

    Raises:
        FrontmatterError: there is no key in the block.
    """
    simple = _read_simple(block)
    if simple is not None:
        return simple, []
    try:
        loaded = load_yaml(block, first_line)
    except FrontmatterError:
        return read_keys(block, first_line)
    return (loaded, []) if is_complete(loaded, block) else read_keys(block, first_line)


def _read_simple(block: str) -> dict[str, Any] | None:
    """What YAML would give for a block of plain ``key: value`` lines, ten times faster; None for anything else.

    Listing thousands of skills spends most of its time here.
    """
    if not (block.isascii() and "\t" not in block):
        return None
    top: dict[str, Any] = {}
    below: dict[str, str] | None = None
    parent = ""
    for line in block.split("\n"):
        match = _SIMPLE_LINE.fullmatch(line)
        if match is None:
            return None
        indent, key, plain, single, double = match.groups()
        value = plain or (single if double is None else double)
        if value and (plain is None or "  " in value):
            value = " ".join(value.split())
        if indent:
            if not parent or value is None:
                return None
            if below is None:
                top[parent] = below = {}
            below[key] = value
        else:
            below = None
            parent = key if plain is single is double is None else ""
            top[key] = value or ""
    return top
