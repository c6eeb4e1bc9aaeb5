"""Finding models in made-up home folders, and choosing one by name."""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path

import pytest

from kvnotes_local.errors import ModelError, UsageError
from kvnotes_local.models import scan as model_scan
from kvnotes_local.models.choice import resolve_model
from kvnotes_local.models.files import FoundModel, ModelSource
from kvnotes_local.models.scan import embedded_model, find_models, scan_models


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def make_model(path: Path, *, architecture: str = "llama", padding: int = 0) -> Path:
    pair = text("general.architecture") + struct.pack("<I", 8) + text(architecture)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair + bytes(padding))
    return path


@pytest.fixture(autouse=True)
def no_embedded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_scan, "DEMO_PACKAGE", "no_such_package")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def found(home: Path, env: dict[str, str] | None = None, **more: str) -> dict[str, ModelSource]:
    scan = scan_models((), env or {}, home, **({"platform": "linux"} | more))
    return {model.name: model.source for model in scan.models if home in model.path.parents}


def make_ollama(root: Path, host: str, name: str, tag: str, digest: str = "a" * 64) -> None:
    manifest = root / "manifests" / host / name / tag
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "f" * 64},
        {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + digest},
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    make_model(root / "blobs" / f"sha256-{digest}")


def test_caches_of_other_programs_are_found(home: Path) -> None:
    make_model(home / ".cache/llama.cpp/ggml-org_small.gguf")
    make_model(home / ".lmstudio/models/maker/repo/studio-Q4_K_M.gguf")
    make_model(home / ".cache/lm-studio/models/maker/old.gguf")
    hub = home / ".cache/huggingface/hub/models--org--repo"
    blob = make_model(hub / "blobs/0123abcd")
    (hub / "snapshots/rev1").mkdir(parents=True)
    (hub / "snapshots/rev2").mkdir()
    for revision in ("rev1", "rev2"):
        (hub / "snapshots" / revision / "hub-Q8_0.gguf").symlink_to(blob)
    make_ollama(home / ".ollama/models", "registry.ollama.ai/library", "mistral", "7b", "b" * 64)
    make_ollama(home / ".ollama/models", "hf.co/someone", "Their-GGUF", "Q4_0", "c" * 64)
    assert found(home) == {
        "ggml-org_small": ModelSource.LLAMA_CPP,
        "hub-Q8_0": ModelSource.HUGGING_FACE,
        "studio-Q4_K_M": ModelSource.LM_STUDIO,
        "old": ModelSource.LM_STUDIO,
        "mistral:7b": ModelSource.OLLAMA,
        "hf.co/someone/Their-GGUF:Q4_0": ModelSource.OLLAMA,
    }


@pytest.mark.parametrize(
    ("platform", "env", "place"),
    [
        ("darwin", {}, "Library/Caches/llama.cpp"),
        ("win32", {"LOCALAPPDATA": "{home}/Local"}, "Local/llama.cpp"),
        ("linux", {"XDG_CACHE_HOME": "{home}/xdg"}, "xdg/llama.cpp"),
        ("linux", {"LLAMA_CACHE": "{home}/mine"}, "mine"),
        ("linux", {"HF_HUB_CACHE": "{home}/hub"}, "hub/models--a--b/snapshots/rev"),
        ("linux", {"HF_HOME": "{home}/hf"}, "hf/hub/models--a--b/snapshots/rev"),
        ("linux", {"XDG_CACHE_HOME": "{home}/xdg"}, "xdg/huggingface/hub/models--a--b/snapshots/rev"),
    ],
)
def test_places_follow_platform_and_environment(home: Path, platform: str, env: dict[str, str], place: str) -> None:
    make_model(home / place / "placed.gguf")
    resolved = {name: value.format(home=home) for name, value in env.items()}
    assert list(found(home, resolved, platform=platform)) == ["placed"]


def test_ollama_models_variable_is_obeyed(home: Path) -> None:
    make_ollama(home / "elsewhere", "registry.ollama.ai/library", "phi", "latest")
    assert list(found(home, {"OLLAMA_MODELS": str(home / "elsewhere")})) == ["phi:latest"]


def test_own_folders_and_files_come_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(home / ".cache/llama.cpp/cached.gguf")
    one = make_model(home / "files/one.GGUF")
    make_model(home / "folder/sub/two.gguf")
    given = make_model(home / "given/any.bin")
    env = {"KVNOTES_MODELS": os.pathsep.join([str(one), str(home / "folder"), str(home / "gone")])}
    scan = scan_models([given], env, home, platform="linux")
    assert [(model.name, model.source) for model in scan.models if home in model.path.parents] == [
        ("any.bin", ModelSource.GIVEN),
        ("one", ModelSource.ENVIRONMENT),
        ("two", ModelSource.ENVIRONMENT),
        ("cached", ModelSource.LLAMA_CPP),
    ]
    assert [place.path for place in scan.unreadable] == [home / "gone"]
    with pytest.raises(ModelError, match="no file or folder"):
        scan_models([home / "gone"], {}, home)


def test_embedded_model_is_found_without_importing_its_package(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "some_demo"
    make_model(package / "Demo-135M.Q4_1.gguf")
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr(model_scan, "DEMO_PACKAGE", "some_demo")
    assert embedded_model() == package / "Demo-135M.Q4_1.gguf"
    models = find_models((), {}, home)
    assert (models[0].name, models[0].source) == ("Demo-135M.Q4_1", ModelSource.EMBEDDED)
    assert "some_demo" not in sys.modules


def test_projectors_and_later_parts_are_left_out_and_parts_are_added_up(home: Path) -> None:
    folder = home / ".lmstudio/models"
    make_model(folder / "mmproj-model-f16.gguf")
    sizes = [make_model(folder / f"big-0000{n}-of-00002.gguf", padding=n * 1000).stat().st_size for n in (1, 2)]
    make_model(folder / "notes.txt")
    models = [model for model in find_models((), {}, home) if home in model.path.parents]
    assert [(model.name, model.n_bytes) for model in models] == [("big", sum(sizes))]
    assert models[0].path.name == "big-00001-of-00002.gguf"


def test_a_file_with_several_names_is_listed_once_and_known_by_all(home: Path) -> None:
    make_ollama(home / ".ollama/models", "registry.ollama.ai/library", "mistral", "7b")
    make_ollama(home / ".ollama/models", "registry.ollama.ai/library", "mistral", "latest")
    models = [model for model in find_models((), {}, home) if home in model.path.parents]
    assert [(model.name, model.aliases) for model in models] == [("mistral:7b", ("mistral:latest",))]
    assert resolve_model("mistral:latest", models) is models[0]


def test_links_in_a_circle_end_and_each_folder_is_read_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home / ".lmstudio/models"
    make_model(folder / "a/model.gguf")
    (folder / "a/up").symlink_to(folder)
    (folder / "self").symlink_to(folder / "self")
    scandir, read = os.scandir, []

    def count(path: Path) -> object:
        read.append(Path(path).resolve())
        return scandir(path)

    monkeypatch.setattr(os, "scandir", count)
    assert list(found(home)) == ["model"]
    assert read.count(folder / "a") == 1


def test_folders_that_cannot_be_read_are_reported_and_the_rest_is_found(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(home / ".cache/llama.cpp/fine.gguf")
    locked = home / ".lmstudio/models/locked"
    make_model(locked / "hidden.gguf")
    make_model(home / ".lmstudio/models/seen.gguf")
    scandir = os.scandir

    def refuse(path: Path) -> object:
        if Path(path) == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    scan = scan_models((), {}, home, platform="linux")
    assert {"fine", "seen"} <= {model.name for model in scan.models}
    assert [(place.path, place.reason) for place in scan.unreadable] == [(locked, "Permission denied")]


@pytest.mark.parametrize(
    "manifest",
    [
        "{not json",
        json.dumps({"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../etc"}]}),
        json.dumps({"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "9" * 64}]}),
    ],
)
def test_damaged_manifests_are_reported(home: Path, manifest: str) -> None:
    root = home / ".ollama/models"
    make_ollama(root, "registry.ollama.ai/library", "good", "1b")
    bad = root / "manifests/registry.ollama.ai/library/bad/1b"
    bad.parent.mkdir()
    bad.write_text(manifest)
    scan = scan_models((), {}, home, platform="linux")
    assert "good:1b" in [model.name for model in scan.models]
    assert len(scan.unreadable) == 1


def test_walks_are_bounded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_scan, "MAX_ENTRIES", 20)
    monkeypatch.setattr(model_scan, "MAX_DEPTH", 2)
    make_model(home / ".cache/llama.cpp/1/2/near.gguf")
    make_model(home / ".cache/llama.cpp/1/2/3/far.gguf")
    for n in range(30):
        make_model(home / f".lmstudio/models/{n}.gguf")
    scan = scan_models((), {}, home, platform="linux")
    names = [model.name for model in scan.models if home in model.path.parents]
    assert (names[0], len(names), "far" in names) == ("near", 21, False)
    assert [place.path for place in scan.unreadable] == [home / ".lmstudio/models"]
    assert "only 20" in scan.unreadable[0].reason


def test_headers_and_errors_of_found_models(home: Path) -> None:
    make_model(home / ".cache/llama.cpp/a-good.gguf")
    (home / ".cache/llama.cpp/b-broken.gguf").write_bytes(b"GGUF\x03")
    make_model(home / ".cache/llama.cpp/c-vision.gguf", architecture="clip")
    good, broken, vision = (m for m in find_models((), {}, home) if m.source is ModelSource.LLAMA_CPP)
    assert good.error is None
    assert good.header is not None
    assert good.header.architecture == "llama"
    assert broken.header is None
    assert "damaged" in str(broken.error)
    assert vision.header is None
    assert "mmproj" in str(vision.error)


def models_named(*names: str) -> list[FoundModel]:
    return [FoundModel(Path(f"/nowhere/{i}/{name}.gguf"), name, 1, ModelSource.GIVEN) for i, name in enumerate(names)]


NAMES = ("SmolLM2-135M", "SmolLM2-360M", "Qwen2.5-1.5B-Q4", "qwen2.5-1.5b-q4", "gemma-3-270m", "gemma-3-270m-it")


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("SmolLM2-360M", "SmolLM2-360M"),
        ("smollm2-360m", "SmolLM2-360M"),
        ("qwen2.5-1.5b-q4", "qwen2.5-1.5b-q4"),
        ("gemma-3-270m", "gemma-3-270m"),
        ("GEMMA-3-270M", "gemma-3-270m"),
        ("SMOLLM2-1", "SmolLM2-135M"),
        ("360", "SmolLM2-360M"),
        ("-it", "gemma-3-270m-it"),
    ],
)
def test_names_are_matched_from_exact_to_part(asked: str, name: str) -> None:
    assert resolve_model(asked, models_named(*NAMES)).name == name


def test_the_same_name_in_two_places_means_the_first() -> None:
    models = models_named("same", "other", "same")
    assert resolve_model("same", models) is models[0]
    assert resolve_model("sam", models) is models[0]
    assert resolve_model(None, models) is models[0]


def test_a_name_wins_over_a_folder_that_is_called_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(home / "gemma-3-270m")
    monkeypatch.chdir(home)
    assert resolve_model("gemma-3-270m", models_named(*NAMES)).name == "gemma-3-270m"


def test_several_fitting_names_are_all_told() -> None:
    with pytest.raises(ModelError, match="'smol' fits several models: SmolLM2-135M, SmolLM2-360M"):
        resolve_model("smol", models_named(*NAMES))


@pytest.mark.parametrize(("asked", "nearest"), [("smolm2", "SmolLM2-"), ("qwem2.5", "Qwen2.5"), ("gema-3", "gemma-3")])
def test_unknown_names_are_answered_with_the_nearest(asked: str, nearest: str) -> None:
    with pytest.raises(ModelError, match=f"neither a file nor a model named '{asked}'. The nearest: {nearest}"):
        resolve_model(asked, models_named(*NAMES))


@pytest.mark.parametrize("asked", ["nothing-like-it", "mistral", "xyz", "/nowhere/at/all.gguf"])
def test_names_that_are_like_none_are_answered_with_how_many_there_are(asked: str) -> None:
    for names, words in ((NAMES, f"the {len(NAMES)} that there are"), (NAMES[:1], "the one that there is")):
        with pytest.raises(ModelError) as caught:
            resolve_model(asked, models_named(*names))
        assert words in str(caught.value)
        assert "kvnotes models list" in str(caught.value)
        assert not any(name in str(caught.value) for name in names)


@pytest.mark.parametrize("asked", ["", " "])
def test_an_empty_name_is_refused(asked: str) -> None:
    for models in ([], models_named(*NAMES)):
        with pytest.raises(UsageError, match="--model is empty"):
            resolve_model(asked, models)


@pytest.mark.parametrize("asked", [None, "mistral", "/some/file.gguf"])
def test_without_any_model_the_message_says_how_to_get_one(asked: str | None) -> None:
    with pytest.raises(ModelError, match=r'pip install "kvnotes-local\[demo\]".*--model PATH.*\$KVNOTES_MODELS'):
        resolve_model(asked, [])


def test_paths_are_models_too(home: Path) -> None:
    alone = make_model(home / "alone/model.gguf")
    assert resolve_model(alone, []).path == alone
    assert resolve_model(str(alone.parent), []).path == alone
    listed = FoundModel(alone, "listed name", 1, ModelSource.LM_STUDIO)
    (home / "link.gguf").symlink_to(alone)
    assert resolve_model(home / "link.gguf", [listed]) is listed
    make_model(home / "alone/second.gguf")
    with pytest.raises(ModelError, match=r"holds several models: model\.gguf, second\.gguf"):
        resolve_model(home / "alone", [])
    with pytest.raises(ModelError, match="no GGUF model in"):
        resolve_model(make_folder(home / "empty"), [])


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_later_part_of_a_split_model_means_the_first(home: Path) -> None:
    first = make_model(home / "m-00001-of-00003.gguf")
    third = make_model(home / "m-00003-of-00003.gguf")
    assert resolve_model(third, []).path == first
    lone = make_model(home / "n-00002-of-00002.gguf")
    with pytest.raises(ModelError, match=r"first part of that model is missing: .*n-00001-of-00002\.gguf"):
        resolve_model(lone, [])
