"""Text from models, files and skills made safe for a terminal."""

from __future__ import annotations

import re
import unicodedata

REORDERING = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""For a class of a regular expression: marks, overrides and isolates of the writing direction, which reorder what is read."""

TAGS = "\U000e0000-\U000e007f"
"""For a class of a regular expression: tag characters, letters that nobody sees."""

# C0 controls except tab and newline, DEL, C1 controls; line and paragraph separators; annotations; what reorders or hides.
# ESC is a C0 control, so no escape sequence survives.
_UNSAFE = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufff9-\ufffb{REORDERING}{TAGS}]")
_UNSAFE_IN_LINE = re.compile(_UNSAFE.pattern + "|[\t\n]")


def safe_text(text: str) -> str:
    """``text`` with control and reordering characters replaced by U+FFFD; tabs and newlines stay."""
    return _UNSAFE.sub("\ufffd", text.replace("\r\n", "\n"))


def safe_json(text: str) -> str:
    """JSON with the characters that a terminal might act on written as escapes: the same value for whoever parses it."""
    return _UNSAFE.sub(lambda found: _json_escape(ord(found[0])), text)


def _json_escape(code: int) -> str:
    if code > 0xFFFF:  # a surrogate pair
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"


def safe_line(text: str, width: int | None = None) -> str:
    """One line of safe text, cut to ``width`` characters with an ellipsis."""
    line = _UNSAFE_IN_LINE.sub(" ", unicodedata.normalize("NFC", text))
    if width is not None and len(line) > width:
        return line[: max(0, width - 1)] + "…"
    return line
