"""Tiny random models of many architectures, as real GGUF files that are made on the spot: no download."""

from __future__ import annotations

import zlib
from pathlib import Path

from .build import ZooBuildError, build_model
from .models import MODELS, ZooModel

__all__ = ["ZOO", "ZooBuildError", "ZooModel", "zoo_model"]

ZOO: tuple[ZooModel, ...] = MODELS


def zoo_model(name: str, directory: Path) -> Path:
    """The file of the model called ``name`` in ``directory``, built on the first call.

    Raises KeyError for an unknown name and ZooBuildError if llama.cpp refuses the metadata.
    """
    spec = {model.name: model for model in ZOO}[name]
    path = directory / f"{name}.gguf"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        build_model(path, spec.arch, spec.keys, spec.keep, spec.tensors, seed=zlib.crc32(name.encode()))
    return path
