"""Tiny models with any chat template, in whose vocabulary the markers of that template are tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.zoo import build, models
from tests.zoo.vocabulary import Vocabulary, byte_vocabulary

CONTROL = 3


def templated_model(path: Path, template: str, *, markers: Sequence[str] | None = None) -> Path:
    """A model file with this template. ``markers``: texts that are control tokens (default: all ``<…>`` of the template)."""
    found = re.findall(r"<[^<>\s'{}]+>", template) if markers is None else markers
    plain = byte_vocabulary()
    new = [marker for marker in dict.fromkeys(found) if marker not in plain.tokens]
    vocabulary = Vocabulary(
        plain.tokens + tuple(new), plain.scores + (0.0,) * len(new), plain.types + (CONTROL,) * len(new)
    )
    llama = next(model for model in models.MODELS if model.name == "llama")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "byte_vocabulary", lambda: vocabulary)
        patch.setattr(build, "CHATML_TEMPLATE", template)
        build.build_model(path, llama.arch, llama.keys, llama.keep, llama.tensors, seed=1)
    return path
