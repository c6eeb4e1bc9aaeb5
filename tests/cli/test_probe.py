"""``kvnotes probe`` as users run it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvnotes_local.cli.svg import Axis, heat_strip, line_plot
from tests.conftest import Run
from tests.skills.skill_samples import simple_skill
from tests.zoo import zoo_model

Kvnotes = Callable[..., Run]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.model
def test_a_bundled_case_is_traced_and_drawn(kvnotes: Kvnotes, smollm2_path: Path, tmp_path: Path) -> None:
    picture = tmp_path / "strip.svg"
    run = kvnotes(
        "probe", "--model", smollm2_path, "--n-ctx", 2048, "--trials", 32, "--svg", picture, "--json"
    )  # fmt: skip
    assert run.code == 0, run.err
    (found,) = json.loads(run.out)["cases"]
    # The finding itself: what stands behind the field carries the decision, the field's own rows do not.
    assert found["later"] > 0.7
    assert found["own"] < 0.3
    assert len(found["pieces"]) == found["n_tokens"]
    assert "".join(found["pieces"]).count("\n") > 0
    assert len(ElementTree.parse(picture).getroot().findall(f"{SVG}text")) == found["n_tokens"] + 1


def test_models_that_decide_nothing_are_told_so(kvnotes: Kvnotes, zoo_directory: Path) -> None:
    run = kvnotes("probe", "--model", zoo_model("qwen2", zoo_directory), "--n-ctx", 4096, "--threads", 1)
    assert run.code == 1
    assert "nothing to trace" in run.err


@pytest.mark.parametrize(
    "wrong", [["--field", "x"], ["--field", "x", "--value", "y", "--ask", "z", "--answers", "Yes"]]
)
def test_a_chat_needs_all_of_its_options(kvnotes: Kvnotes, zoo_directory: Path, wrong: list[object]) -> None:
    run = kvnotes("probe", "--chat", "c1", *wrong, "--model", zoo_model("llama", zoo_directory), "--threads", 1)
    assert run.code == 2


@pytest.mark.parametrize(
    "lonely", [["--field", "x"], ["--value", "y"], ["--ask", "z"], ["--answers", "Yes,No"]], ids=lambda one: one[0]
)
def test_options_about_a_chat_want_a_chat(kvnotes_here: Kvnotes, zoo_directory: Path, lonely: list[object]) -> None:
    run = kvnotes_here("probe", *lonely, "--model", zoo_model("llama", zoo_directory), "--threads", 1)
    assert run.code == 2
    assert "--chat" in run.err


def test_requests_of_a_chat_that_cannot_tell_anything_are_refused_with_the_reason(
    kvnotes_here: Kvnotes, zoo_directory: Path, tmp_path: Path
) -> None:
    simple_skill(tmp_path / "skills" / "lamp", "The lamp costs {{price|nine marks}}.")
    how = ["--model", zoo_model("llama", zoo_directory), "--threads", 1, "--n-ctx", 2048]
    ask = ("ask", "Hello", "--skill", "lamp", "--chat", "new", "--skills-dir", tmp_path / "skills", "--max-tokens", 2)
    chat = json.loads(kvnotes_here(*ask, *how, "--json").out)["chat_id"]
    about = ("probe", "--chat", chat, "--field", "price", "--ask", "Dear?")
    same = kvnotes_here(*about, "--value", "nine marks", *how)
    assert (same.code, "already" in same.err) == (2, True)
    alike = kvnotes_here(*about, "--value", "two marks", "--answers", "Yes sir,Yes madam", *how)
    assert (alike.code, "begin with the same token" in alike.err) == (1, True)


@pytest.mark.parametrize("command", ["probe", "bench"])
@pytest.mark.parametrize("place", ["a folder", "below a file"])
def test_a_picture_that_cannot_be_written_is_told_before_anything_is_measured(
    kvnotes_here: Kvnotes, tmp_path: Path, command: str, place: str
) -> None:
    (tmp_path / "file").touch()
    picture = tmp_path if place == "a folder" else tmp_path / "file" / "x.svg"
    run = kvnotes_here(command, "--svg", picture, "--model", tmp_path / "no-such.gguf")
    assert run.code == 1
    assert "picture cannot be written" in run.err  # and not that there is no such model


def test_pictures_are_well_formed_whatever_the_text_is() -> None:
    strip = ElementTree.fromstring(
        heat_strip(["<b>", "\x1b[2J", "&", "x\n"], [0.5, 0.0, -1.0, 1.0], 'a "title" & <more>')
    )
    assert [one.text for one in strip.findall(f"{SVG}text")][1:] == ["<b>", " [2J", "&", "x⏎"]
    plot = ElementTree.fromstring(
        line_plot({"<read>": [(256, 900.0), (512, 1800.0)], "none": [(256, 0.0)]}, Axis("tokens"), Axis("ms"), "t")
    )
    assert len(plot.findall(f"{SVG}circle")) == 2
    with pytest.raises(ValueError, match="positive"):
        line_plot({"none": []}, Axis("tokens"), Axis("ms"), "t")
