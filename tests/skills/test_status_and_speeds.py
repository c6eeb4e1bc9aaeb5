"""What is told about the library without a model, and what is remembered of measurements."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from skill_samples import path_of, simple_skill

from kvnotes_local.artifacts.artifact import ArtifactMeta
from kvnotes_local.artifacts.meta import ArtifactKind, rows_version, text_sha256
from kvnotes_local.artifacts.writer import write_artifact
from kvnotes_local.chat_format.turns import FieldSpan
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.library import SkillLibrary
from kvnotes_local.skills.speeds import ModelSpeed, SpeedMemory
from kvnotes_local.skills.status import ArtifactState, ArtifactStatus, artifact_states
from tests.artifacts.samples import LAYOUTS, META, random_rows

BODY = "Refunds within {{window|30 days}}."


def put(store: ArtifactStore, skill: str, text: str, window: str = "30 days", **changes: str) -> ArtifactMeta:
    meta = replace(
        META,
        skill=skill,
        skill_sha256=text_sha256(text),
        fields=(FieldSpan("window", window, 2, 4),),
        llama_cpp_version=version("llama-cpp-python"),
    )
    meta = replace(meta, **changes)  # type: ignore[arg-type]
    write_artifact(path_of(store, meta), meta, random_rows(*LAYOUTS["plain"]))
    return meta


@pytest.fixture
def library(tmp_path: Path) -> SkillLibrary:
    simple_skill(tmp_path / "skills" / "refunds", BODY)
    return SkillLibrary([tmp_path / "skills"])


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


def states(library: SkillLibrary, store: ArtifactStore) -> dict[str, tuple[ArtifactStatus, ...]]:
    return artifact_states(library, store.list())


def test_an_artifact_of_the_text_as_it_is_now_is_compiled(library: SkillLibrary, store: ArtifactStore) -> None:
    put(store, "refunds", "Refunds within 30 days.")
    (one,) = states(library, store)["refunds"]
    assert (one.state, one.reason, one.values) == (ArtifactState.COMPILED, "", ())


def test_other_field_values_are_no_reason_to_be_stale(library: SkillLibrary, store: ArtifactStore) -> None:
    put(store, "refunds", "Refunds within 2 weeks.", "2 weeks")
    (one,) = states(library, store)["refunds"]
    assert one.state is ArtifactState.COMPILED
    assert one.values == (("window", "2 weeks"),)


def test_stale_artifacts_say_why(library: SkillLibrary, store: ArtifactStore) -> None:
    put(store, "refunds", "Refunds never.")
    put(store, "refunds", "Refunds within 30 days.", llama_cpp_version="0.2.1")
    put(store, "gone", "Refunds within 30 days.")
    found = states(library, store)
    assert {one.reason for one in found["refunds"]} == {
        "the text has changed",
        f"made by llama.cpp 0.2.1, now {version('llama-cpp-python')}",
    }
    assert found["gone"][0].reason == "the skill is gone"


def test_references_go_with_their_skill(library: SkillLibrary, store: ArtifactStore, tmp_path: Path) -> None:
    (tmp_path / "skills" / "refunds" / "references").mkdir()
    (tmp_path / "skills" / "refunds" / "references" / "x.md").write_text("Limits are low.\n")
    put(store, "refunds/references/x.md", "Limits are low.")
    (one,) = states(library, store)["refunds"]
    assert one.state is ArtifactState.COMPILED


def test_artifacts_of_another_version_are_no_damage_and_gc_removes_them(
    library: SkillLibrary, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvnotes_local.artifacts.writer.FORMAT_VERSION", 0)
    old = path_of(store, put(store, "refunds", "Refunds never."))
    monkeypatch.undo()
    new = path_of(store, put(store, "refunds", "Refunds within 30 days."))
    found = states(library, store)["refunds"]
    assert [(one.state, one.reason) for one in found] == [
        (ArtifactState.COMPILED, ""),
        (ArtifactState.OTHER_VERSION, "compile it again"),
    ]
    assert found[1].stored.model_name == META.model_name
    assert [one.path for one in store.gc()] == [old]
    assert [one.path for one in store.list()] == [new]


def test_damaged_artifacts_and_waiting_imports_are_told_apart(library: SkillLibrary, store: ArtifactStore) -> None:
    path_of(store, put(store, "refunds", "Refunds within 30 days.")).write_bytes(b"rubbish")
    shelf = ArtifactStore(store.directory.parent / "imports")
    put(shelf, "refunds", "Refunds within 30 days.", origin="imported from x.zip")
    found = artifact_states(library, store.list(), shelf.list())
    assert [one.state for one in found["refunds"]] == [ArtifactState.UNCHECKED, ArtifactState.DAMAGED]


def test_rows_stay_valid_within_a_range_of_releases_and_states_do_not() -> None:
    oldest = rows_version("0.3.36")
    assert rows_version("0.3.37") == rows_version("0.4.0") == oldest
    assert rows_version("0.3.35") == "0.3.35"  # never checked: only as good as itself
    assert rows_version("0.3.36.dev1") == "0.3.36.dev1"
    assert replace(META, llama_cpp_version="0.3.37").key == replace(META, llama_cpp_version="0.3.36").key
    assert replace(META, llama_cpp_version="0.3.35").key != replace(META, llama_cpp_version="0.3.36").key
    whole = replace(META, kind=ArtifactKind.STATE)
    assert replace(whole, llama_cpp_version="0.3.37").key != replace(whole, llama_cpp_version="0.3.36").key


def test_the_states_of_200_artifacts_are_told(tmp_path: Path, store: ArtifactStore) -> None:
    for number in range(200):
        simple_skill(tmp_path / "many" / f"skill-{number:03}", BODY + f" Number {number}.")
        put(store, f"skill-{number:03}", f"Refunds within 30 days. Number {number}.")
    library = SkillLibrary([tmp_path / "many"])
    found = artifact_states(library, store.list())
    assert sum(one.state is ArtifactState.COMPILED for all_ in found.values() for one in all_) == 200


def test_the_length_from_which_splicing_pays_off_follows_from_what_was_measured() -> None:
    speed = ModelSpeed(prefill=1000.0, splice_seconds=0.010, splice_token_seconds=0.0002)
    n = speed.pays_off_from(8)
    assert n is not None

    def read(n: int) -> float:
        return n / 1000

    def splice(n: int) -> float:
        return 8 / 1000 + 0.010 + n * 0.0002

    assert splice(n) < read(n)
    assert splice(n - 2) >= read(n - 2)
    assert ModelSpeed(1000.0).pays_off_from(8) is None
    assert ModelSpeed(1000.0, 0.01, 0.001).pays_off_from(8) is None


def test_speeds_are_remembered_and_damage_costs_a_measurement_only(tmp_path: Path) -> None:
    memory = SpeedMemory(tmp_path)
    assert memory.get("a") is None
    memory.put("a", ModelSpeed(100.0, 0.1, 0.001))
    memory.put("b", ModelSpeed(200.0))
    assert SpeedMemory(tmp_path).get("a") == ModelSpeed(100.0, 0.1, 0.001)
    assert SpeedMemory(tmp_path).get("b") == ModelSpeed(200.0)
    for damage in (
        "[",
        '{"a": {"prefill": "x"}}',
        '{"a": {"prefill": 0, "splice_seconds": 0, "splice_token_seconds": 0}}',
    ):
        (tmp_path / "speeds.json").write_text(damage)
        assert memory.get("a") is None
    SpeedMemory(tmp_path / "speeds.json").put("a", ModelSpeed(1.0))  # cannot be written: no error
