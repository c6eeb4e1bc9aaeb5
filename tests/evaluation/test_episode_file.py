"""Episode files are checked as a whole: what is wrong is named with its step, its key, what is there and what should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvnotes_local.evaluation.episode import EpisodeError
from kvnotes_local.evaluation.episode_file import load_episode
from kvnotes_local.notebook.edit import EditLevel
from tests.conftest import REPOSITORY


def refused(path: Path) -> str:
    with pytest.raises(EpisodeError) as caught:
        load_episode(path)
    message = str(caught.value)
    assert str(path) in message
    assert "Errno" not in message
    return message


def refused_text(tmp_path: Path, text: str) -> str:
    file = tmp_path / "episode.toml"
    file.write_text(text)
    return refused(file)


NUMBERS = ['"x"', "true", "-1", "1.5", "[1]", "1" * 40]
TEXTS = ["3", "true", '""', '"  "', "[1]", "{ a = 1 }", "2026-01-01"]
TABLES = ["3", '"x"', "[]", "{}", "{ a = true }", "{ a = [1] }"]


@pytest.mark.parametrize(
    ("action", "key", "values", "expected"),
    [
        ("ask", "ask", TEXTS, "a text"),
        ("say", "say", TEXTS, "a text"),
        ("say", "answer", TEXTS, "a text"),
        ("splice", "splice", TEXTS, "a text"),
        ("drop", "drop", TEXTS, "a text"),
        ("drop", "clean", ["1", '"yes"', "[]"], "true or false"),
        ("splice", "at", NUMBERS, "whole number, 0 or more"),
        ("splice", "repair", NUMBERS, "whole number, 0 or more"),
        ("splice", "values", TABLES, "a table"),
        ("set", "set", TABLES, "a table"),
        ("set", "level", ['"best"', "1", '""', "[]"], ", ".join(EditLevel)),
        ("set", "window", [*NUMBERS, "0"], "whole number, 1 or more"),
        ("ask", "max_tokens", [*NUMBERS, "0"], "whole number, 1 or more"),
        ("ask", "choices", ['"Yes"', "3", '[""]', '["a", ""]', '["a"]', '["a", "a"]', "[1, 2]", "[]"], "two or more"),
        ("fork", "fork", NUMBERS, "whole number, 0 or more"),
        ("undo", "undo", [*NUMBERS, "0"], "whole number, 1 or more"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, action: str, key: str, values: list[str], expected: str) -> None:
    good = {"set": '{ a = "b" }', "fork": "1", "undo": "1"}.get(action, '"x"')
    for value in values:
        lines = {action: good} | {key: value}
        step = "\n".join(f"{name} = {text}" for name, text in lines.items())
        message = refused_text(tmp_path, f'[[step]]\nsay = "x"\n[[step]]\n{step}\n')
        where, _, rest = message.partition(": expected ")
        assert where.endswith(f"step 2, {key}"), message
        wanted, _, found = rest.partition(", found ")
        assert expected in wanted, message
        if len(value) < 40:  # a number that long is no number of TOML
            assert found[0] == value[0], message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[step]]\nsay = 'x'\nask = 'y'", ["step 1", "exactly one of", "say and ask"]),
        ("[[step]]\naks = 'x'", ["step 1", "exactly one of", "'aks'"]),
        ("[[step]]", ["step 1", "exactly one of", "none"]),
        ("step = [1]", ["step 1", "a table", "found 1"]),
        (
            "[[step]]\nask = 'x'\nloud = true\nquiet = 1",
            ["step 1", "'loud', 'quiet' are not known", "choices, max_tokens"],
        ),
        ("[[step]]\nask = 'x'\n[other]\n", ["'other' is not known", "step, system"]),
        ("step = 1", ["[[step]]", "found 1"]),
        ("step = []", ["[[step]]"]),
        ("", ["[[step]]", "none"]),
        ("system = 5\n[[step]]\nask = 'x'", ["system: expected a text, found 5"]),
        ("a = b", ["not TOML", "line 1"]),
        ("a = " + "1" * 5000, ["too long"]),
        ("a = " + "[" * 5000, ["too deeply"]),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    message = refused_text(tmp_path, text)
    for word in words:
        assert word in message


def test_what_cannot_be_read_is_said_in_words(tmp_path: Path) -> None:
    assert "no file" in refused(tmp_path / "none.toml")
    assert "directory" in refused(tmp_path).lower()
    file = tmp_path / "latin.toml"
    file.write_bytes(b"system = '\xe9'")
    assert "not UTF-8" in refused(file)


def test_a_right_episode_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "episode.toml"
    file.write_text(
        """system = ""
[[step]]
splice = "x"
at = 0
repair = 0
values = { limit = 5, name = "" }
[[step]]
set = { limit = 2.5 }
level = "auto"
window = 1
[[step]]
ask = "x"
choices = ["Yes", "No"]
max_tokens = 1
[[step]]
drop = "x"
clean = false
[[step]]
fork = 0
"""
    )
    splice, change, ask, drop, fork = load_episode(file).steps
    assert splice.options == {"at": 0, "repair": 0, "values": {"limit": 5, "name": ""}}
    assert (change.argument, change.options) == ({"limit": 2.5}, {"level": "auto", "window": 1})
    assert ask.options == {"choices": ["Yes", "No"], "max_tokens": 1}
    assert (drop.options, fork.argument, fork.number) == ({"clean": False}, 0, 5)
    assert len(load_episode(REPOSITORY / "docs" / "examples" / "hotel.toml").steps) > 4
