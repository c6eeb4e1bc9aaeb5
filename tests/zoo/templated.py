"""A tiny model that has a given chat template, with every marker of it a token."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chat_format.markers import marked_vocabulary

from . import build, models


def model_with_template(path: Path, template: str, *, seed: int = 1) -> Path:
    """Write the zoo's llama with this template to ``path``."""
    llama = next(model for model in models.MODELS if model.name == "llama")
    vocabulary = marked_vocabulary(template, adds_bos=True).table()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "byte_vocabulary", lambda: vocabulary)
        patch.setattr(build, "CHATML_TEMPLATE", template)
        build.build_model(path, llama.arch, llama.keys, llama.keep, llama.tensors, seed=seed)
    return path
