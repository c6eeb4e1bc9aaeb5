"""The YAML of a SKILL.md's head, read without trusting it.

Every scalar is read as a string (YAML's *base* schema, which can construct even less than ``safe_load``), so that
``version: 1.10`` and ``no`` stay as they were written. Anchors and aliases are refused, so nothing small grows large.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import yaml

from kvnotes_local.errors import SkillError
from kvnotes_local.terminal_text import REORDERING

_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_MARKS = re.compile(r"[&*]|(?:^|[:,\[{-])[ \t]*!", re.MULTILINE)
# Overrides of the writing direction can make a name read as another one.
_REORDERING = re.compile(f"[{REORDERING}]")


class FrontmatterError(SkillError):
    """The block is missing, too large, or not YAML; the message says which and in what line, but not in which file."""


def load_yaml(block: str, first_line: int) -> dict[str, Any]:
    """A YAML mapping, with strings, lists and dicts as values. ``first_line``: of the block, for messages.

    Raises:
        FrontmatterError: the block is not a YAML mapping, or uses anchors, aliases or tags.
    """
    try:
        if _MARKS.search(block):
            _refuse_marks(block, first_line)
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


def _refuse_marks(block: str, first_line: int) -> None:
    for token in yaml.scan(block, Loader=_LOADER):
        if isinstance(token, (yaml.AnchorToken, yaml.AliasToken)):
            line = token.start_mark.line + first_line
            raise FrontmatterError(
                f"uses a YAML anchor or alias (& or *) in line {line}; write the value out, or quote it"
            )
        if isinstance(token, yaml.TagToken):  # would be dropped without a word
            raise FrontmatterError(f"uses a YAML tag (!) in line {token.start_mark.line + first_line}; quote the value")


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
        " " if char.isspace() else "" if unicodedata.category(char) in ("Cc", "Cs") else char
        for char in _REORDERING.sub("", text)
    )
    return " ".join("".join(kept).split())
