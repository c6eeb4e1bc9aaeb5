"""Fields in texts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvnotes_local.skills.template import (
    FieldPiece,
    TextPiece,
    field_defaults,
    parse_template,
    render,
)

BRACES = st.lists(st.sampled_from([*"{}|\\$ab1 -_\n\t'.`", "{{", "}}", "{{a|b}}", "\n```\n"]), max_size=40).map("".join)


def test_a_field_has_a_name_and_a_default() -> None:
    pieces = parse_template("Within {{refund window|30 days}}, not later.")

    assert pieces == [TextPiece("Within "), FieldPiece("refund window", "30 days"), TextPiece(", not later.")]
    assert render(pieces) == "Within 30 days, not later."
    assert render(pieces, {"refund window": "{{a|b}} 14 days", "unknown": "x"}) == "Within {{a|b}} 14 days, not later."


def test_a_field_without_default_stays_as_written_until_it_is_given_a_value() -> None:
    pieces = parse_template("Hello {{name}}!")

    assert render(pieces) == "Hello {{name}}!"
    assert render(pieces, {"name": "Ada"}) == "Hello Ada!"
    assert parse_template("{{a|}}") == [FieldPiece("a", "")]


@pytest.mark.parametrize(
    "text",
    [
        "{{ name }}", "{{ name | upper }}", "{{name |x}}", "{{name| x}}", "{{name|x }}", "${{ secrets.X }}", "${{a|b}}",
        "{{1st|x}}", "{{|x}}", "{{}}", "{{a\nb|c}}", "{{a|b\nc}}", "{a|b}", "{{a|b}", "{a|b}}", "{{a|{b}}}",
        "{{" + "a" * 65 + "|x}}",
        "{{HIGH|MEDIUM|LOW}}", "{{a|b|}}", "{{a||b}}", "{{a||}}",
        "{{#each}}", "{{/each}}", "{{> part}}", "{{.Values.x}}", "{% if a %}", "\\", "\\{", "{{a.|x",
    ],
)  # fmt: skip
def test_anything_else_with_braces_stays_text(text: str) -> None:
    assert parse_template(text) == [TextPiece(text)]


def test_backslashes_take_the_meaning_away_only_in_front_of_a_field() -> None:
    assert render(parse_template(r"\{{a|b}}")) == "{{a|b}}"
    assert render(parse_template(r"\\{{a|b}}")) == r"\b"
    assert render(parse_template(r"\\\{{a|b}}")) == r"\{{a|b}}"
    assert render(parse_template(r"C:\\dir \n \{x}")) == r"C:\\dir \n \{x}"


IN_CODE = [
    "```jinja\n{{item|items}}\n```",
    "~~~\n{{item|items}}\n~~~",
    "- ```\n  {{item|items}}\n  ```",
    "> ```\n> {{item|items}}\n> ```",
    "Use `{{item|items}}` here.",
    "Use ``a ` {{item|items}}`` here.",
    "A span `that goes on\nto {{item|items}} there`.",
    "```\nnever closed\n\n{{item|items}}",
    "`\\{{item|items}}`",
]


@pytest.mark.parametrize("text", IN_CODE)
def test_nothing_in_code_is_a_field_unless_asked_for(text: str) -> None:
    assert parse_template(text) == [TextPiece(text)]
    assert render(parse_template(text + "\n", in_code=True)) != text + "\n"
    behind = "`x`\n```\ny\n```\n{{a|b}} `c`"
    assert render(parse_template(behind)) == "`x`\n```\ny\n```\nb `c`"


@given(BRACES)
def test_pieces_are_never_empty_and_never_adjacent_text(text: str) -> None:
    pieces = parse_template(text)

    assert all(piece.text for piece in pieces if isinstance(piece, TextPiece))
    assert not any(isinstance(a, TextPiece) and isinstance(b, TextPiece) for a, b in pairwise(pieces))


@given(BRACES, st.sampled_from(["", "x", "b "]), st.integers(0, 4))
def test_every_second_backslash_in_front_of_a_field_is_one_and_a_single_one_makes_it_text(
    value: str, before: str, n_slashes: int
) -> None:
    field = "{{a|x}}"
    rendered = render(parse_template(before + "\\" * n_slashes + field), {"a": value})
    assert rendered == before + "\\" * (n_slashes // 2) + (field if n_slashes % 2 else value)


def test_the_first_default_counts() -> None:
    assert field_defaults(parse_template("{{a}} {{b|1}} {{a|2}} {{b|3}}")) == {"a": "2", "b": "1"}
