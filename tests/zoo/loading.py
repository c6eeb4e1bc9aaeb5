"""Loading a model file the ordinary way, for tests that call llama.cpp themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama

from kvnotes_local.engine.llama import native


@contextmanager
def loaded(path: Path) -> Iterator[Any]:
    """A ``llama_model *`` on the CPU, freed at the end."""
    native.start()
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    params.use_extra_bufts = False
    model = llama.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"{path} does not load: {native.recent_log(3)}"
    try:
        yield model
    finally:
        llama.llama_model_free(model)
