"""Models in several files: all parts make the model, for llama.cpp and for whatever is remembered of it."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.errors import ModelError
from kvnotes_local.models.choice import resolve_model
from kvnotes_local.models.files import FoundModel, ModelSource
from kvnotes_local.models.fingerprint import model_fingerprint
from kvnotes_local.models.scan import scan_models
from tests.shards import split_model
from tests.zoo import zoo_model


@pytest.fixture(scope="module")
def uploads(zoo_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """First parts of models that differ in one part each, "0" for the original."""
    folder = tmp_path_factory.mktemp("uploads")
    whole = zoo_model("llama", zoo_directory)
    return {str(part): split_model(whole, folder / str(part), altered=[part]) for part in range(4)}


def part(first: Path, number: int) -> Path:
    return first.with_name(first.name.replace("00001-of", f"{number:05d}-of"))


def test_models_that_differ_in_any_part_are_different_ones(uploads: dict[str, Path], tmp_path: Path) -> None:
    first_parts = {name: first.read_bytes() for name, first in uploads.items()}
    assert first_parts["0"] == first_parts["2"] == first_parts["3"]
    fingerprints = [model_fingerprint(first, tmp_path) for first in uploads.values()]
    assert len(set(fingerprints)) == 4
    assert [model_fingerprint(first, tmp_path) for first in uploads.values()] == fingerprints  # as remembered
    for first in uploads.values():
        (tmp_path / "others" / first.parent.name).mkdir(parents=True)
        for number in (1, 2, 3):
            name = part(first, number).name.replace("model", "renamed")
            shutil.copy(part(first, number), tmp_path / "others" / first.parent.name / name)
    moved = [next((tmp_path / "others" / name).glob("*-00001-of-*")) for name in uploads]
    assert [model_fingerprint(first, None) for first in moved] == fingerprints


def test_a_part_that_was_replaced_is_hashed_again(uploads: dict[str, Path], tmp_path: Path) -> None:
    first = Path(shutil.copytree(uploads["0"].parent, tmp_path / "model")) / uploads["0"].name
    before = model_fingerprint(first, tmp_path)
    shutil.copy(part(uploads["3"], 3), part(first, 3))
    assert model_fingerprint(first, tmp_path) == model_fingerprint(uploads["3"], tmp_path) != before


@pytest.mark.parametrize("missing", list(itertools.chain(*(itertools.combinations((2, 3), n) for n in (1, 2)))))
def test_parts_that_are_missing_are_named(uploads: dict[str, Path], tmp_path: Path, missing: tuple[int, ...]) -> None:
    first = Path(shutil.copytree(uploads["0"].parent, tmp_path / "model")) / uploads["0"].name
    for number in missing:
        part(first, number).unlink()
    with pytest.raises(ModelError, match=", ".join(part(first, number).name for number in missing) + ".* missing"):
        model_fingerprint(first, None)
    with pytest.raises(ModelError, match="missing"):
        LlamaEngine(first, EngineParams(n_ctx=256, n_threads=1))
    (found,) = [one for one in scan_models([first], {}, tmp_path, added=()).models if one.path == first]
    assert "missing" in str(found.error)


def test_parts_of_different_models_are_not_taken_for_one(
    uploads: dict[str, Path], zoo_directory: Path, tmp_path: Path
) -> None:
    other = split_model(zoo_model("gemma2", zoo_directory), tmp_path / "other")
    shuffled = Path(shutil.copytree(uploads["0"].parent, tmp_path / "shuffled")) / uploads["0"].name
    part(shuffled, 2).rename(tmp_path / "second")
    part(shuffled, 3).rename(part(shuffled, 2))
    (tmp_path / "second").rename(part(shuffled, 3))
    mixed = Path(shutil.copytree(uploads["0"].parent, tmp_path / "mixed")) / uploads["0"].name
    shutil.copy(part(other, 2), part(mixed, 2))
    for first in (shuffled, mixed):
        with pytest.raises(ModelError, match="do not belong to one model"):
            model_fingerprint(first, None)
        with pytest.raises(ModelError, match="do not belong to one model"):
            LlamaEngine(first, EngineParams(n_ctx=256, n_threads=1))


def test_names_that_the_parts_are_not_found_by_are_refused(uploads: dict[str, Path], tmp_path: Path) -> None:
    renamed = tmp_path / "renamed.gguf"
    shutil.copy(uploads["0"], renamed)
    with pytest.raises(ModelError, match=r"name that it had, which ends in -00001-of-00003\.gguf"):
        LlamaEngine(renamed, EngineParams(n_ctx=256, n_threads=1))
    with pytest.raises(ModelError, match="not the first part"):
        model_fingerprint(part(uploads["0"], 2), None)


def test_a_whole_model_with_the_name_of_a_part_is_a_whole_model(zoo_directory: Path, tmp_path: Path) -> None:
    whole = zoo_model("llama", zoo_directory)
    named = tmp_path / "model-00001-of-00007.gguf"
    shutil.copy(whole, named)
    assert model_fingerprint(named, None) == model_fingerprint(whole, None)


def test_two_models_that_share_a_first_part_are_both_found(uploads: dict[str, Path], tmp_path: Path) -> None:
    """As in Hugging Face's cache, where equal files of two revisions are one."""
    for name in ("2", "3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model-00001-of-00003.gguf").symlink_to(uploads["0"])
        for number in (2, 3):
            (tmp_path / name / f"model-{number:05d}-of-00003.gguf").symlink_to(part(uploads[name], number))
    firsts = [tmp_path / name / "model-00001-of-00003.gguf" for name in ("2", "3")]
    models = [one for one in scan_models(firsts, {}, tmp_path, added=()).models if one.source is ModelSource.GIVEN]
    assert [one.path for one in models] == firsts
    assert [resolve_model(first, models).path for first in firsts] == firsts
    listed = FoundModel(firsts[1], "listed", 1, ModelSource.LM_STUDIO)
    assert resolve_model(firsts[0], [listed]).path == firsts[0]
    assert resolve_model(part(firsts[1], 3), [listed]) is listed


def test_llama_cpp_loads_the_parts_and_computes_what_the_whole_file_gives(
    uploads: dict[str, Path], zoo_directory: Path, tmp_path: Path
) -> None:
    def engine(path: Path) -> LlamaEngine:
        return LlamaEngine(path, EngineParams(n_ctx=256, n_threads=1), cache_dir=tmp_path)

    seen = {}
    for name, path in {"whole": zoo_model("llama", zoo_directory), **uploads}.items():
        with engine(path) as one:
            seen[name] = one.info
            assert one.info.model_class.value == "splice"
    assert seen["whole"].n_params == seen["0"].n_params
    assert seen["whole"].n_bytes == seen["0"].n_bytes
    assert len({info.fingerprint for info in seen.values()}) == 5
    # Rotations are remembered by model, too.
    assert len(list(tmp_path.rglob("*.json"))) >= len(seen)
    assert len(json.loads((tmp_path / "fingerprints.json").read_text())) == 1 + 4 * 3
