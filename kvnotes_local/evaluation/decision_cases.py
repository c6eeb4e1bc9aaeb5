"""A bundled text in which the value of a field decides a question."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.engine.protocol import Engine


@dataclass(frozen=True)
class DecisionCase:
    """A field of the text. ``answers[i]`` is right when the field has ``values[i]``; ``values[0]`` stands in the text."""

    field: str
    values: tuple[str, str]
    answers: tuple[str, str]
    ask: str


@dataclass(frozen=True)
class DecisionText:
    """A long text with a field for each case."""

    text: str
    cases: tuple[DecisionCase, ...]


def decision_text() -> DecisionText:
    """The bundled text with its cases."""
    data = tomllib.loads(files("kvnotes_local.evaluation").joinpath("data", "decisions.toml").read_text("utf-8"))
    cases = tuple(
        DecisionCase(
            field=entry["field"],
            values=(entry["values"][0], entry["values"][1]),
            answers=(entry["answers"][0], entry["answers"][1]),
            ask=entry["ask"],
        )
        for entry in data["case"]
    )
    return DecisionText(data["text"].strip(), cases)


def choice_margin(engine: Engine, logits: NDArray[np.float32], first: str, second: str) -> float:
    """How much likelier an answer begins with ``first`` than with ``second``: difference of log-probabilities.

    The first tokens of the word as it is, in lower case, and behind a space all count.
    """

    def log_mass(word: str) -> float:
        spellings = {word, word.lower(), f" {word}", f" {word.lower()}"}
        tokens = sorted({engine.tokenize(spelling)[0] for spelling in spellings})
        return float(np.logaddexp.reduce(logits[tokens].astype(np.float64)))

    return log_mass(first) - log_mass(second)
