"""The YAML block at the top of a SKILL.md, read without trusting it.

Every scalar is read as a string (YAML's *base* schema, which can construct even less than ``safe_load``), so that
``version: 1.10`` and ``no`` stay as they were written. Anchors and aliases are refused, so nothing small grows large.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import yaml

from kvnotes_local.errors import SkillError

MAX_FRONTMATTER_BYTES = 64 * 1024

_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_TEXT_KEYS = ("name", "description", "license", "compatibility", "allowed-tools")
_TEXT_LINE = re.compile(rf"({'|'.join(_TEXT_KEYS)}):[ \t]+(.*)")
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
# Overrides of the writing direction can make a name read as another one.
_BIDI = set(range(0x202A, 0x202F)) | set(range(0x2066, 0x206A)) | {0x061C, 0x200E, 0x200F}


class FrontmatterError(SkillError):
    """The block is missing, too large, or not YAML; the message says which and in what line, but not in which file."""


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
        raise FrontmatterError("does not start with a '---' line; put name and description between two such lines")
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
    """Keys of the block, with strings, lists and dicts as values, and warnings.

    A plain ``description: Use when: asked`` is not YAML; it is read as meant, with a warning.
    ``first_line`` is the block's line in the file, for messages.

    Raises:
        FrontmatterError: the block is not a YAML mapping, or uses anchors or aliases.
    """
    simple = _read_simple(block)
    if simple is not None:
        return simple, []
    try:
        return _load(block, first_line), []
    except FrontmatterError:
        quoted, keys = _quote_text_values(block)
        if not keys:
            raise
        try:
            loaded = _load(quoted, first_line)
        except FrontmatterError:
            loaded = None
        if loaded is None:
            raise
        return loaded, [
            f"{key} is not valid YAML as written (often a ': ' inside); it was read as plain text, put it in quotes"
            for key in keys
        ]


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


def _load(block: str, first_line: int) -> dict[str, Any]:
    try:
        if "&" in block or "*" in block:
            _refuse_aliases(block, first_line)
        loaded = _clean_value(yaml.load(block, Loader=_LOADER) or {})
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" in line {mark.line + first_line}" if mark is not None else ""
        raise FrontmatterError(f"has a YAML mistake{where}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise FrontmatterError(f"has a YAML mistake: {clean(str(error))[:200]}") from error
    except RecursionError as error:
        raise FrontmatterError("has YAML nested too deeply; a skill needs one level, under metadata") from error
    if not isinstance(loaded, dict):
        raise FrontmatterError("has no 'key: value' lines between its '---' lines; write at least name and description")
    return loaded


def _refuse_aliases(block: str, first_line: int) -> None:
    for token in yaml.scan(block, Loader=_LOADER):
        if isinstance(token, (yaml.AnchorToken, yaml.AliasToken)):
            line = token.start_mark.line + first_line
            raise FrontmatterError(
                f"uses a YAML anchor or alias (& or *) in line {line}; write the value out, or quote it"
            )


def _quote_text_values(block: str) -> tuple[str, list[str]]:
    """Put the plain values of the text keys that are not YAML into quotes, with their indented continuation lines."""
    out: list[str] = []
    keys: list[str] = []
    lines = block.split("\n")
    at = 0
    while at < len(lines):
        start = at
        at += 1
        match = _TEXT_LINE.fullmatch(lines[start])
        if match is None or match[2].strip()[:1] in ("", "'", '"', "|", ">", "[", "{"):
            out.append(lines[start])
            continue
        while at < len(lines) and lines[at][:1] in (" ", "\t") and lines[at].strip():
            at += 1
        if _is_yaml("\n".join(lines[start:at])):
            out.extend(lines[start:at])
            continue
        keys.append(match[1])
        text = " ".join([match[2].strip(), *(line.strip() for line in lines[start + 1 : at])]).replace("'", "''")
        # Folded lines leave empty ones behind, so that line numbers in messages stay right.
        out.extend([f"{match[1]}: '{text}'", *[""] * (at - start - 1)])
    return "\n".join(out), keys


def _is_yaml(text: str) -> bool:
    try:
        _load(text, 1)
    except FrontmatterError:
        return False
    return True


def _clean_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {clean(str(key)): _clean_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean_value(item) for item in value]
    return "\n".join(clean(line) for line in str(value).split("\n"))


def clean(text: str) -> str:
    """One line fit for any terminal: control and direction characters out, white space collapsed.

    Escapes in YAML can produce lone surrogates, which no file or terminal takes; they go as well.
    """
    if text.isascii() and text.isprintable():
        return " ".join(text.split()) if "  " in text or text[:1] == " " or text[-1:] == " " else text
    kept = (
        " " if char.isspace() else "" if unicodedata.category(char) in ("Cc", "Cs") or ord(char) in _BIDI else char
        for char in text
    )
    return " ".join("".join(kept).split())
