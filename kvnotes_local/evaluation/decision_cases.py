"""Bundled texts in which the value of a field decides a question."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.contract.protocol import Engine
from kvnotes_local.errors import KvnotesError


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

    Beginnings are those of ``telling_tokens``, which may raise KvnotesError.
    """
    mine, theirs = (
        float(np.logaddexp.reduce(logits[sorted(tokens)].astype(np.float64)))
        for tokens in telling_tokens(engine, first, second)
    )
    return mine - theirs


def telling_tokens(engine: Engine, first: str, second: str) -> tuple[frozenset[int], frozenset[int]]:
    """What an answer can begin with that says one word and not the other: as it is, in lower case, and behind a space.

    Raises KvnotesError where nothing does.
    """
    mine, theirs = (
        frozenset(engine.tokenize(spelling)[0] for spelling in (word, word.lower(), f" {word}", f" {word.lower()}"))
        for word in (first, second)
    )
    if not (mine - theirs and theirs - mine):
        raise KvnotesError(
            f"{first!r} and {second!r} begin with the same token, and answers are told apart by their first one. Use answers "
            "that begin differently."
        )
    return mine - theirs, theirs - mine
