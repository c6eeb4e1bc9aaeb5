"""Every model of the zoo is a file that llama.cpp loads, tokenizes text, and is classed as it should be."""

from __future__ import annotations

from pathlib import Path

import llama_cpp.llama_cpp as api
import pytest

from kvnotes_local.engine.rotation.measurement import measure_rotation
from kvnotes_local.errors import RotationError
from kvnotes_local.kv.rotation import check_rotation
from tests.zoo import ZOO, ZooBuildError, ZooModel, zoo_model
from tests.zoo.build import build_model
from tests.zoo.loading import loaded

MAX_BYTES = 5_000_000
every_model = pytest.mark.parametrize("spec", ZOO, ids=[model.name for model in ZOO])


@every_model
def test_model_is_small_loads_and_carries_a_chatml_vocabulary(spec: ZooModel, zoo_directory: Path) -> None:
    path = zoo_model(spec.name, zoo_directory)
    assert path.stat().st_size < MAX_BYTES
    with loaded(path) as model:
        text = "Budget limit: 900 € <|im_end|>\n\tThe naïve fox’s tree – 木."
        plain, special = model.tokenize(text, special=False), model.tokenize(text, special=True)
        assert model.detokenize(plain) == text
        end_of_turn = api.llama_vocab_eot(model.vocab)
        assert end_of_turn not in plain
        assert special.count(end_of_turn) == 1
        assert "<|im_start|>" in (model.chat_template or "")


@every_model
def test_model_is_classed_as_expected(spec: ZooModel, zoo_directory: Path) -> None:
    with loaded(zoo_model(spec.name, zoo_directory)) as model:
        assert (model.is_recurrent or model.is_hybrid) == (spec.expected == "prefix-only")
        if spec.expected == "prefix-only":
            with pytest.raises(RotationError, match=r"is a (hybrid|recurrent) model"):
                measure_rotation(model, n_ctx=512, n_threads=1)
        elif spec.expected == "prefill":
            with pytest.raises(RotationError, match=r"wrong by \d|only zeros"):
                measure_rotation(model, n_ctx=512, n_threads=1)
        else:
            measured = measure_rotation(model, n_ctx=512, n_threads=1)
            assert measured.residual < 1e-6
            assert measured.angle_error < 1e-6
            check_rotation(measured.rotation, measured.layout)


def test_zoo_covers_architectures_variants_and_head_sizes(zoo_directory: Path) -> None:
    assert len({model.name for model in ZOO}) == len(ZOO) >= 22
    variants = {word for model in ZOO for word in model.variant}
    assert variants >= {"yarn", "linear", "frequency factors", "long and short factors", "m-rope", "mla", "experts"}
    assert variants >= {"sliding window", "partial rotation", "no rotation in some layers", "hybrid", "recurrent"}
    head_sizes = {model.keys[".attention.key_length"] for model in ZOO if model.expected == "splice"}
    assert head_sizes >= {64, 80, 96, 128, 192, 256, 576}


def test_same_name_gives_same_bytes_and_an_existing_file_is_kept(tmp_path: Path) -> None:
    first = zoo_model("llama", tmp_path / "a")
    stamp = first.stat().st_mtime_ns
    assert zoo_model("llama", tmp_path / "a") == first
    assert first.stat().st_mtime_ns == stamp
    second = zoo_model("llama", tmp_path / "b")
    assert second.read_bytes() == first.read_bytes()
    assert [path.name for path in (tmp_path / "a").iterdir()] == [first.name]


def test_unknown_names_and_refused_metadata_are_told(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        zoo_model("no such model", tmp_path)
    with pytest.raises(ZooBuildError, match="refuses the metadata"):
        build_model(tmp_path / "x.gguf", "llama", {".context_length": 512}, "", {}, seed=1)
    assert list(tmp_path.iterdir()) == []
