"""Which model is taken where none is named: always the same, and it is said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvnotes_local.errors import ModelError
from kvnotes_local.models.default import DefaultModel
from kvnotes_local.models.files import FoundModel, ModelSource
from tests.conftest import Run
from tests.zoo import zoo_model

Kvnotes = Callable[..., Run]


@pytest.fixture
def models(zoo_directory: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("llama", "qwen2"):
        shutil.copy(zoo_model(name, zoo_directory), folder / f"my-{name}.gguf")
    return folder


def document(run: Run) -> Any:
    assert run.code == 0, run.err
    return json.loads(run.out)


def default(kvnotes_here: Kvnotes, **env: str) -> str:
    return str(document(kvnotes_here("models", "default", "--json", env=env))["name"])


def test_what_is_added_or_found_later_does_not_become_the_default(kvnotes_here: Kvnotes, models: Path) -> None:
    listed = document(kvnotes_here("models", "list", "--json"))["models"]
    first = next(one["name"] for one in listed if one["default"])
    added = kvnotes_here("models", "add", models)
    assert f"Without --model {first} is taken" in added.out
    assert default(kvnotes_here) == first
    assert default(kvnotes_here, KVNOTES_MODELS=str(models)) == first
    assert f"Without --model {first} is taken" in kvnotes_here("models", "list").out
    doctor = json.loads(kvnotes_here("doctor", "--json").out)["checks"]
    assert any(f"without --model {first} is taken" in check["finding"] for check in doctor)


def test_the_default_is_chosen_taken_and_named(kvnotes_here: Kvnotes, models: Path) -> None:
    kvnotes_here("models", "add", models)
    assert "my-qwen2 is taken" in kvnotes_here("models", "default", "my-qwen2").out
    taken = kvnotes_here("models", "info", "--n-ctx", 512, "--json")
    assert document(taken)["path"] == str(models / "my-qwen2.gguf")
    assert "Model: my-qwen2, the default" in taken.err
    other = kvnotes_here("models", "info", "--n-ctx", 512, "--model", "my-llama", "--json")
    assert document(other)["path"] == str(models / "my-llama.gguf")
    assert "the default" not in other.err
    refused = kvnotes_here("models", "default", "nothing-like-that")
    assert (refused.code, default(kvnotes_here)) == (1, "my-qwen2")


def test_a_default_that_is_gone_is_an_error_that_names_it(kvnotes_here: Kvnotes, models: Path, tmp_path: Path) -> None:
    kvnotes_here("models", "add", models)
    kvnotes_here("models", "default", "my-qwen2")
    (models / "my-qwen2.gguf").unlink()
    for command in (("models", "info"), ("models", "default"), ("ask", "Hi")):
        run = kvnotes_here(*command)
        assert run.code == 1
        assert "The default model my-qwen2 is gone" in run.err
        assert "kvnotes models default NAME" in run.err
    assert not any(one["default"] for one in document(kvnotes_here("models", "list", "--json"))["models"])
    assert "my-llama is taken" in kvnotes_here("models", "default", "my-llama").out


def found(path: Path) -> FoundModel:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF")
    return FoundModel(path, path.stem, 4, ModelSource.LM_STUDIO)


def test_a_file_that_has_moved_is_known_by_its_name_and_one_off_the_list_by_its_path(tmp_path: Path) -> None:
    memory = DefaultModel(tmp_path / "default.json")
    one, other = found(tmp_path / "a" / "one.gguf"), found(tmp_path / "a" / "other.gguf")
    memory.choose(one)
    assert memory.take([other]).path == one.path
    one.path.unlink()
    moved = found(tmp_path / "b" / "one.gguf")
    assert memory.take([other, moved]) is moved
    with pytest.raises(ModelError, match="default model one is gone"):
        memory.take([other])


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"name": "", "path": "x"}', '{"name": 1, "path": "x"}'])
def test_a_damaged_record_is_an_error_and_not_another_model(tmp_path: Path, content: str) -> None:
    memory = DefaultModel(tmp_path / "default.json")
    memory.file.write_text(content)
    with pytest.raises(ModelError, match="kvnotes models default NAME"):
        memory.take([found(tmp_path / "one.gguf")])


def test_where_nothing_can_be_kept_the_first_model_is_taken(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    one = found(tmp_path / "one.gguf")
    assert DefaultModel(tmp_path / "file" / "default.json").take([one]) is one
