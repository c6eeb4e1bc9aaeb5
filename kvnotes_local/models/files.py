"""Model files on this machine, as they were found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from kvnotes_local.errors import ModelError
from kvnotes_local.models.gguf_header import GGUFHeader
from kvnotes_local.models.gguf_reader import read_gguf_header
from kvnotes_local.models.parts import model_parts

MODELS_VARIABLE = "KVNOTES_MODELS"


class ModelSource(StrEnum):
    """Where a model was found, in the order in which they are listed."""

    GIVEN = "given"
    ADDED = "added"
    ENVIRONMENT = f"${MODELS_VARIABLE}"
    EMBEDDED = "embedded"
    LLAMA_CPP = "llama.cpp cache"
    HUGGING_FACE = "Hugging Face cache"
    LM_STUDIO = "LM Studio"
    OLLAMA = "Ollama"


@dataclass(frozen=True)
class FoundModel:
    """A model file. ``n_bytes``: of all its parts. ``aliases``: further names that the same file goes by."""

    path: Path
    name: str
    n_bytes: int
    source: ModelSource
    aliases: tuple[str, ...] = ()

    @property
    def header(self) -> GGUFHeader | None:
        """The file's metadata, read when first asked for; None when ``error`` says why there is none."""
        return self._inspection if isinstance(self._inspection, GGUFHeader) else None

    @property
    def error(self) -> str | None:
        """Why this file cannot be used as a model, None when nothing speaks against it."""
        return self._inspection if isinstance(self._inspection, str) else None

    @cached_property
    def _inspection(self) -> GGUFHeader | str:
        try:
            header = read_gguf_header(self.path)
            model_parts(self.path, header)
        except ModelError as error:
            return str(error)
        return header if header.kind == "model" else f"{self.path} holds no language model, but one's {header.kind}"


@dataclass(frozen=True)
class Unreadable:
    """A place that could not be looked at, or only in part."""

    path: Path
    reason: str


@dataclass(frozen=True)
class ModelScan:
    """What was found, and what could not be looked at."""

    models: tuple[FoundModel, ...]
    unreadable: tuple[Unreadable, ...]


def file_identity(path: Path) -> tuple[int, int] | None:
    """Device and inode; None where the file is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
