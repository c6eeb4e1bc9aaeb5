"""A tiny model in which splicing is exact, so that whatever is wrong with the rows shows."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from kvnotes_local.contract.protocol import Engine
from kvnotes_local.evaluation.questions import Context, Question
from kvnotes_local.notebook.segment_factory import SegmentFactory
from kvnotes_local.skills.library import SkillLibrary
from tests.skills.skill_samples import simple_skill
from tests.zoo.build import build_model
from tests.zoo.models import transformer

SKILL_TEXT = "The blue lamp costs nine marks. Guests may keep it for two weeks, and then it goes back to the shop."
QUESTIONS = (
    Question("What does it cost?", ("It costs nine marks.", "It costs two marks."), "It costs nine marks."),
    Question("Tell me more."),
)


def single_layer_model(directory: Path) -> Path:
    """One layer: keys and values depend on token and position only, so rows computed anywhere are right everywhere.

    Queries are large, so that attention picks few tokens and keys that are wrong change what is picked.
    """
    return _model(directory, 1)


def deep_model(directory: Path) -> Path:
    """Four such layers: rows depend so much on all that stands before them that no splice is right."""
    return _model(directory, 4)


def _model(directory: Path, n_layer: int) -> Path:
    path = directory / f"strong-{n_layer}.gguf"
    if not path.exists():
        rng = np.random.default_rng(zlib.crc32(b"strong"))
        strong = {}
        for layer in range(n_layer):
            for name, shape, scale in (("attn_q", (256, 128), 0.5), ("attn_output", (128, 256), 0.3)):
                strong[f"blk.{layer}.{name}.weight"] = (scale * rng.standard_normal(shape)).astype(np.float32)
        directory.mkdir(parents=True, exist_ok=True)
        build_model(path, "llama", transformer(n_layer=n_layer), "", strong, seed=5)
    return path


def contexts(engine: Engine) -> tuple[Context, ...]:
    """Two short chats of different lengths."""
    factory = SegmentFactory(engine)
    begin = factory.beginning(None, {})
    short = (*begin, factory.user("Hi.", None), factory.assistant("Hello!"))
    long = (*short, factory.user("It rains today.", None), factory.assistant("Then take the train, it is dry."))
    return Context("short", short), Context("long", long)


def library(directory: Path, text: str = SKILL_TEXT, name: str = "lamp") -> SkillLibrary:
    simple_skill(directory / name, text)
    return SkillLibrary([directory])
