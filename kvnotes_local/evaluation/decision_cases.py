"""Bundled texts in which the value of a field decides a question."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """A text with a field for each case."""

    name: str
    text: str
    cases: tuple[DecisionCase, ...]

    def reversed(self) -> DecisionText:
        """The other direction of each case: what was edited in stands in the text, and the other way round."""
        text = self.text
        for case in self.cases:
            old, new = case.values
            text = text.replace(f"{{{{{case.field}|{old}}}}}", f"{{{{{case.field}|{new}}}}}")
        cases = tuple(replace(case, values=case.values[::-1], answers=case.answers[::-1]) for case in self.cases)
        return DecisionText(f"{self.name}, reversed", text, cases)


def decision_texts(*, long: bool = False) -> tuple[DecisionText, ...]:
    """The bundled texts, one a domain. ``long``: with an appendix that has nothing to do with the decisions."""
    data = tomllib.loads(files("kvnotes_local.evaluation").joinpath("data", "decisions.toml").read_text("utf-8"))
    return tuple(
        DecisionText(
            domain["name"],
            domain["text"].strip() + ("\n\n" + data["appendix"].strip() if long else ""),
            tuple(
                DecisionCase(
                    field=entry["field"],
                    values=(entry["values"][0], entry["values"][1]),
                    answers=(entry["answers"][0], entry["answers"][1]),
                    ask=entry["ask"],
                )
                for entry in domain["case"]
            ),
        )
        for domain in data["domain"]
    )


def joined(texts: Sequence[DecisionText]) -> DecisionText:
    """One long text out of several."""
    return DecisionText(
        ", ".join(text.name for text in texts),
        "\n\n".join(text.text for text in texts),
        tuple(case for text in texts for case in text.cases),
    )


def choice_margin(engine: Engine, logits: NDArray[np.float32], first: str, second: str) -> float:
    """How much likelier an answer begins with ``first`` than with ``second``: difference of log-probabilities.

    Beginnings are ``first_tokens``.
    """

    def log_mass(word: str) -> float:
        return float(np.logaddexp.reduce(logits[sorted(first_tokens(engine, word))].astype(np.float64)))

    return log_mass(first) - log_mass(second)


def first_tokens(engine: Engine, word: str) -> frozenset[int]:
    """What an answer can begin with that says this: the word as it is, in lower case, and behind a space."""
    spellings = (word, word.lower(), f" {word}", f" {word.lower()}")
    return frozenset(engine.tokenize(spelling)[0] for spelling in spellings)
