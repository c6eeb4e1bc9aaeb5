"""What users are told of a model's chat format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.chat_format.template_parts import Default, MidChat, Parts, System
from tests.chat_format.templated_model import templated_model
from tests.conftest import Run

Kvnotes = Callable[..., Run]
SMALL = ("--n-ctx", 512, "--threads", 1, "--json")


def document(run: Run) -> dict[str, object]:
    assert run.code == 0, run.err
    found: dict[str, object] = json.loads(run.out)
    return found


def test_models_info_tells_the_format(kvnotes_here: Kvnotes, tmp_path: Path) -> None:
    path = templated_model(tmp_path / "tiny.gguf", Parts(default=Default.FIXED, mid_chat=MidChat.DROPPED).template())
    assert document(kvnotes_here("models", "info", path, *SMALL))["format"] == {
        "source": "template",
        "proven": True,
        "problem": None,
        "system": "turn",
        "system_mid_chat": False,
        "default_system": "You help.",
    }


def test_a_plain_format_is_told_with_its_reason_once(kvnotes_here: Kvnotes, tmp_path: Path) -> None:
    path = templated_model(tmp_path / "tiny.gguf", "{{ messages[-1].content }}")
    told = document(kvnotes_here("models", "info", path, *SMALL))["format"]
    assert isinstance(told, dict)
    assert (told["source"], told["proven"]) == ("plain", False)
    asked = document(kvnotes_here("ask", "Hi", "--model", path, "--max-tokens", 2, *SMALL))
    notices = asked["notices"]
    assert isinstance(notices, list)
    assert [told["problem"] in notice for notice in notices] == [True]


def test_a_system_text_without_a_place_is_told_and_read(kvnotes_here: Kvnotes, tmp_path: Path) -> None:
    path = templated_model(tmp_path / "tiny.gguf", Parts(system=System.DROPPED, mid_chat=MidChat.DROPPED).template())
    plain, asked = (
        document(kvnotes_here("ask", "Hi", "--model", path, "--max-tokens", 2, *SMALL, *more))
        for more in ((), ("--system", "Be kind to {{who|Ada}}.", "--set", "who=Bob"))
    )
    assert plain["notices"] == []
    notices = asked["notices"]
    assert isinstance(notices, list)
    assert "first question" in " ".join(notices)
    tokens = [found["tokens"]["prefilled"] for found in (plain, asked)]  # type: ignore[index]
    assert tokens[1] - tokens[0] >= len("Be kind to Bob.")  # a byte is a token


def test_an_empty_system_text_is_what_the_template_makes_of_it(kvnotes_here: Kvnotes, tmp_path: Path) -> None:
    path = templated_model(tmp_path / "tiny.gguf", Parts(default=Default.FIXED).template())
    default, empty = (
        document(kvnotes_here("ask", "Hi", "--model", path, "--max-tokens", 2, *SMALL, *more))["tokens"]
        for more in ((), ("--system", ""))
    )
    assert default["prefilled"] - empty["prefilled"] == len("You help.")  # type: ignore[index]
