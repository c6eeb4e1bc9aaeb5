"""Tiny random models of many architectures, as real GGUF files that are made on the spot: no download."""

from __future__ import annotations

import hashlib
import zlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

from .build import ZooBuildError, build_model
from .models import MODELS, ZooModel

__all__ = ["ZOO", "ZooBuildError", "ZooModel", "zoo_model"]

ZOO: tuple[ZooModel, ...] = MODELS


def zoo_model(name: str, directory: Path) -> Path:
    """The file of the model called ``name`` in ``directory``, built on the first call.

    The same name gives the same bytes; a change of the zoo or of llama.cpp's version gives another file.
    Raises KeyError for an unknown name and ZooBuildError if llama.cpp refuses the metadata.
    """
    spec = {model.name: model for model in ZOO}[name]
    path = directory / f"{name}-{_sources_digest()}.gguf"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        for outdated in directory.glob(f"{name}-????????.gguf"):
            outdated.unlink()
        build_model(path, spec.arch, spec.keys, spec.keep, spec.tensors, seed=zlib.crc32(name.encode()))
    return path


@cache
def _sources_digest() -> str:
    digest = hashlib.sha256(version("llama-cpp-python").encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:8]
