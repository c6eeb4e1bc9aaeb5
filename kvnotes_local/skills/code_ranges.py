"""Where a Markdown text shows code: in fences and in code spans, by the rules of CommonMark.

Two are left out: code that is only indented looks like the text of a list, and a fence counts at any indentation.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

# What may stand before a fence: quotes and list markers, which may contain each other.
_FENCE = re.compile(
    r"(?P<before>(?P<inside>(?:[ \t]*(?:>|[-*+][ \t]|\d{1,9}[.)][ \t]))*)[ \t]*)(?P<mark>`{3,}(?=[^`]*$)|~{3,})"
)
_CONTAINER = re.compile(r" *(?:>|[-*+] |\d{1,9}[.)] )")
_FENCE_END = re.compile(r"[ \t>]*(?P<mark>`{3,}|~{3,})[ \t]*$")
# A code span ends where its heading, row of a table, paragraph, list item or quote does.
_ONE_LINE = re.compile(r"[ \t>]*(?:#{1,6}[ \t]|\|)")
_NEW_BLOCK = re.compile(r"[ \t>]*(?:$|[-*+][ \t]|\d{1,9}[.)][ \t])")
_QUOTE = re.compile(r"[ \t]*>")
_TICKS = re.compile("`+")


class CodeRange(NamedTuple):
    """Characters ``start … stop`` (stop excluded) of a text: a code span with its backticks, or a fence as whole lines."""

    start: int
    stop: int
    is_fence: bool


def code_ranges(text: str) -> list[CodeRange]:
    """Ranges of code in order. A fence that does not end reaches to the end of the text."""
    return list(_ranges(text)) if "`" in text or "~~~" in text else []


def _ranges(text: str) -> Iterator[CodeRange]:
    fence: re.Match[str] | None = None
    fence_start = block_start = at = 0
    was_quote = False
    for line in text.split("\n"):
        end, is_quote = min(at + len(line) + 1, len(text)), bool(_QUOTE.match(line))
        if fence and _is_left(fence, line):
            yield CodeRange(fence_start, at, True)
            fence, block_start = None, at
        if fence:
            if _is_closed(fence, line):
                yield CodeRange(fence_start, end, True)
                fence, block_start = None, end
        elif mark := _FENCE.match(line):
            yield from _spans(text, block_start, at)
            fence, fence_start = mark, at
        elif _ONE_LINE.match(line):
            yield from _spans(text, block_start, at)
            yield from _spans(text, at, end)
            block_start = end
        elif _NEW_BLOCK.match(line) or (is_quote and not was_quote):
            yield from _spans(text, block_start, at)
            block_start = at
        at, was_quote = end, is_quote
    if fence:
        yield CodeRange(fence_start, len(text), True)
    else:
        yield from _spans(text, block_start, len(text))


def _is_closed(fence: re.Match[str], line: str) -> bool:
    end = _FENCE_END.match(line)
    same_place = (">" in line) == (">" in fence["inside"])
    return end is not None and end["mark"].startswith(fence["mark"]) and same_place


def _is_left(fence: re.Match[str], line: str) -> bool:
    """Whether a line stands outside of the quotes and list items that a fence began in, which ends both."""
    rest = line.expandtabs(4)
    in_quote = False
    for container in _CONTAINER.findall(fence["inside"].expandtabs(4)):
        stripped = rest.lstrip()
        if in_quote:
            container = container.removeprefix(" ")  # it belongs to the quote's marker, as in the line
        in_quote = container.endswith(">")
        if in_quote:
            if not stripped.startswith(">"):
                return True
            rest = stripped[1:].removeprefix(" ")
        elif not stripped:
            return False  # an empty line ends no list item
        elif len(rest) - len(stripped) < len(container):
            return True
        else:
            rest = rest[len(container) :]
    return False


def _spans(text: str, start: int, stop: int) -> Iterator[CodeRange]:
    """Code spans within one block: a run of backticks, up to the next run of as many."""
    if "`" not in text[start:stop]:
        return
    runs = [(match.start(), match.end()) for match in _TICKS.finditer(text, start, stop)]
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for first, last in runs:
        by_length[last - first].append(first)
    at = start
    for first, last in runs:
        if first < at:
            continue  # inside the span before
        if first > start and _is_escaped(text, first, start):
            first += 1
            if first == last:
                continue
        same = by_length[last - first]
        following = bisect_right(same, last - 1)
        if following < len(same):
            at = same[following] + last - first
            yield CodeRange(first, at, False)


def _is_escaped(text: str, at: int, start: int) -> bool:
    """Whether an odd number of backslashes stands before a place."""
    n = 0
    while at - n > start and text[at - n - 1] == "\\":
        n += 1
    return n % 2 == 1
