"""Loading a model file on the CPU, for tests of what stands on llama.cpp directly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvnotes_local.engine.llama.model import LlamaModel


@contextmanager
def loaded(path: Path) -> Iterator[LlamaModel]:
    """A model on the CPU, freed at the end."""
    model = LlamaModel(path, n_gpu_layers=0, extra_buffers=False)
    try:
        yield model
    finally:
        model.close()
