"""What screens and commands say of the same files is the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from kvnotes_local.artifacts.meta import ArtifactMeta, text_sha256
from kvnotes_local.artifacts.writer import write_artifact
from kvnotes_local.chat_format.turns import FieldSpan
from kvnotes_local.notebook.segment import Freshness, Kind, Segment
from kvnotes_local.notebook.segment import Run as RunOfTokens
from kvnotes_local.notebook.store.chats import ChatStore
from kvnotes_local.notebook.store.params import ChatParams
from kvnotes_local.session.places import Places
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.imports import ImportShelf
from kvnotes_local.tui.news import News, SkillsListed
from kvnotes_local.tui.views import SkillRow
from kvnotes_local.tui.workbench.desk import FileDesk
from kvnotes_local.tui.workbench.file_requests import ListSkills
from tests.artifacts.samples import LAYOUTS, META, random_rows
from tests.conftest import Run
from tests.skills.skill_samples import simple_skill
from tests.zoo import zoo_model

INSTALLED = version("llama-cpp-python")
NOW = "Refunds within 30 days."


def put(store: ArtifactStore, text: str = NOW, window: str = "30 days", llama_cpp: str = INSTALLED) -> ArtifactMeta:
    meta = replace(
        META,
        skill="refunds",
        skill_sha256=text_sha256(text),
        fields=(FieldSpan("window", window, 2, 4),),
        llama_cpp_version=llama_cpp,
    )
    write_artifact(store.path(meta.key, meta.skill, meta.model_fingerprint), meta, random_rows(*LAYOUTS["plain"]))
    return meta


def other_values(store: ArtifactStore) -> None:
    put(store, "Refunds within 2 weeks.", "2 weeks")


def stale_and_current(store: ArtifactStore) -> None:
    put(store, "Refunds never.")
    put(store)


def imported(store: ArtifactStore) -> None:
    put(ImportShelf(store).waiting)


CASES: dict[str, tuple[Callable[[ArtifactStore], object], str, str]] = {
    "nothing": (lambda store: None, "", "not compiled"),
    "as it is now": (put, "compiled", "compiled"),
    "with other values": (other_values, "compiled", "compiled"),
    "of another text": (lambda store: put(store, "Refunds never."), "stale", "out of date"),
    "by another llama.cpp": (lambda store: put(store, llama_cpp="0.2.1"), "stale", "out of date"),
    "before and after a change": (stale_and_current, "compiled", "compiled"),
    "elsewhere": (imported, "imported, not checked yet", "imported"),
}
"""How the artifact was made; what the command calls the first one; what the screen calls the skill."""


@pytest.mark.parametrize("case", CASES)
def test_a_skill_is_as_compiled_on_the_screen_as_in_the_list(
    case: str, tmp_path: Path, kvnotes_here: Callable[..., Run]
) -> None:
    make, in_list, on_screen = CASES[case]
    simple_skill(tmp_path / "skills" / "refunds", "Refunds within {{window|30 days}}.")
    places = Places(tmp_path / "cache", tmp_path, tmp_path, tmp_path, (tmp_path / "skills",), only_given=True)
    make(places.artifact_store())
    listed = kvnotes_here("skills", "list", "--skills-dir", tmp_path / "skills", "--json")
    (entry,) = [one for one in json.loads(listed.out)["skills"] if one["name"] == "refunds"]
    assert [one["status"] for one in entry["artifacts"]][:1] == ([in_list] if in_list else [])
    assert row_of(places).status(META.model_fingerprint) == on_screen


def test_the_screen_says_with_which_values_a_skill_is_compiled_those_of_its_text_first(tmp_path: Path) -> None:
    simple_skill(tmp_path / "skills" / "refunds", "Refunds within {{window|30 days}}.")
    places = Places(tmp_path / "cache", tmp_path, tmp_path, tmp_path, (tmp_path / "skills",), only_given=True)
    for window in ("1 day", "2 weeks", "30 days", "4 months"):
        put(places.artifact_store(), f"Refunds within {window}.", window)
    values = [one.values for one in row_of(places).compiled]
    assert values[0] == ()
    assert sorted(values[1:]) == [(("window", window),) for window in ("1 day", "2 weeks", "4 months")]


@pytest.mark.parametrize(
    "command",
    [
        ("ask", "Hm?"),
        ("verify", "night-clerk"),
        ("probe", "--field", "color", "--value", "red", "--ask", "What color?"),
    ],
    ids=lambda command: command[0],
)
def test_a_chat_of_another_model_is_refused_in_the_same_words_everywhere(
    command: tuple[str, ...], tmp_path: Path, zoo_directory: Path, kvnotes_here: Callable[..., Run]
) -> None:
    store = ChatStore(tmp_path / "data" / "chats.sqlite")
    user = Segment(Kind.USER, (1, 2, 3), "hello there", content_stop=3, runs=(RunOfTokens(3, Freshness.FRESH),))
    store.save("0badcafe", [user], "say", new=("Other-7B", "f" * 64, ChatParams()))
    store.close()
    model = zoo_model("llama", zoo_directory)
    run = kvnotes_here(*command, "--chat", "0bad", "--model", model, "--threads", 1, "--n-ctx", 2048)
    assert run.code == 2
    assert "The chat 0badcafe was held with Other-7B; its tokens mean something else to" in run.err
    assert "Use --model Other-7B." in run.err


def row_of(places: Places) -> SkillRow:
    heard: list[News] = []
    ListSkills().run(FileDesk(places, heard.append))
    (news,) = heard
    assert isinstance(news, SkillsListed)
    (row,) = news.skills
    return row
