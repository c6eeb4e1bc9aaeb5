"""Where a Markdown text shows code; the oracle is markdown-it, which follows CommonMark."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from kvnotes_local.skills.code_ranges import code_ranges

WORD = re.compile(r"\d+x")
# Constructs that hide backticks from Markdown are rare around fields, and code that is only indented is none here.
MARKDOWN = MarkdownIt("commonmark").disable(
    ["code", "html_block", "html_inline", "autolink", "link", "image", "entity", "reference"]
)


def words_in_code(tokens: list[Token]) -> set[str]:
    found: set[str] = set()
    for token in tokens:
        if token.type in ("fence", "code_inline"):
            found.update(WORD.findall(f"{token.info} {token.content}"))
        found |= words_in_code(token.children or [])
    return found


INLINE = st.lists(st.sampled_from(["x", "x", "x", "`", "`", "``", "```", "\\`", "\\\\", " "]), min_size=1, max_size=7)
PROSE = st.tuples(st.sampled_from(["", "", "", "- ", "1. ", "# ", "  "]), INLINE.map("".join)).map("".join)
FENCE = st.sampled_from(["```", "~~~", "````", "```python", "~~~ ` x", "  ```", "- ```", "``` x ` x"])
QUOTE = st.lists(INLINE.map("".join) | FENCE, min_size=1, max_size=3).map(
    lambda lines: "\n".join(f"> {line}" for line in lines) + "\n"  # and an empty line: a paragraph would go on
)
TEXTS = st.lists(PROSE | PROSE | FENCE | QUOTE | st.just(""), max_size=9).map("\n".join)


@given(TEXTS)
@example("a `x\n\n` b")
@example("```\nx\n~~~\nx\n``\nx\n````\nx ` x `")
@example("- ```\n  x\n  ```\n- x")
@example("> ```\n> x\n\nx")
@example("`` x ` x `` x ` x `")
def test_code_is_where_commonmark_has_it(text: str) -> None:
    numbers = iter(range(1000))
    text = re.sub("x", lambda _: f" {next(numbers)}x ", text)
    ranges = code_ranges(text)
    ours = {word[0] for word in WORD.finditer(text) if any(one.start <= word.start() < one.stop for one in ranges)}
    assert ours == words_in_code(MARKDOWN.parse(text))


@given(st.text(alphabet="`~x\n\\> -#|1.", max_size=60))
def test_ranges_are_in_order_and_fences_are_whole_lines(text: str) -> None:
    at = 0
    for start, stop, is_fence in code_ranges(text):
        assert at <= start < stop <= len(text)
        at = stop
        if is_fence:
            assert start == 0 or text[start - 1] == "\n"
            assert stop == len(text) or text[stop - 1] == "\n"
        else:
            assert text[start] == text[stop - 1] == "`"


@pytest.mark.parametrize("unit", ["`", "`` ` ", "` `` ``` ", "\\`", "- `\n", "```\n", "~~~ `\n"])
def test_long_texts_take_time_in_proportion_to_their_length(unit: str) -> None:
    """A mebibyte of what makes parsers slow; quadratic code would not come back within the suite's patience."""
    text = unit * ((1 << 20) // len(unit))
    assert all(one.stop <= len(text) for one in code_ranges(text))
