"""What a sequence would answer: the logits along one answer, and the weight of each choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.contract.generation import Sampling
from kvnotes_local.contract.plan import Decode, Keep, Part
from kvnotes_local.contract.protocol import Engine
from kvnotes_local.evaluation.logits import log_softmax
from kvnotes_local.evaluation.questions import AskTokens


@dataclass(frozen=True, eq=False)
class Answer:
    """``logits``: float32 (len(tokens) + 1, n_vocab), before each token of the answer and behind the last one.

    ``choices``: float64 (n_choices,), log-probabilities of the choices among themselves.
    """

    tokens: tuple[int, ...]
    logits: NDArray[np.float32]
    choices: NDArray[np.float64]


def answer(
    engine: Engine, seq: int, ask: AskTokens, *, tokens: Sequence[int] | None = None, n_positions: int = 32
) -> Answer:
    """Ask behind everything that ``seq`` holds, which stays as it is.

    ``tokens``: what to be led through (teacher forcing); None for the sequence's own greedy answer, of which
    ``n_positions`` are predicted.
    """
    length = len(engine.tokens(seq))
    with forked(engine, seq) as fork:
        engine.apply(fork, [Keep(0, length), Decode(ask.tokens)])
        first = engine.logits(fork)
        asked = length + len(ask.tokens)
        if tokens is None:
            tokens = _greedy(engine, fork, n_positions - 1)
            engine.apply(fork, [Keep(0, asked)], logits=False)
        rows = [first[np.newaxis]]
        if tokens:
            rows.append(engine.score(fork, tokens))
            engine.apply(fork, [Keep(0, asked)], logits=False)
        return Answer(tuple(tokens), np.concatenate(rows), _weigh(engine, fork, first, ask.choices))


@contextmanager
def built(engine: Engine, parts: Sequence[Part]) -> Iterator[int]:
    """A sequence made by a plan, freed at the end."""
    seq = engine.new_sequence()
    try:
        engine.apply(seq, parts, logits=False)
        yield seq
    finally:
        engine.free_sequence(seq)


@contextmanager
def forked(engine: Engine, seq: int, parts: Sequence[Part] = ()) -> Iterator[int]:
    """A fork of a sequence with ``parts`` behind it, freed at the end."""
    length = len(engine.tokens(seq))
    fork = engine.fork(seq, length)
    try:
        if parts:
            engine.apply(fork, [Keep(0, length), *parts], logits=False)
        yield fork
    finally:
        engine.free_sequence(fork)


def _greedy(engine: Engine, seq: int, n_tokens: int) -> tuple[int, ...]:
    generation = engine.generate(seq, Sampling(), n_tokens)
    for _ in generation:
        pass
    return tuple(generation.tokens)


def _weigh(
    engine: Engine, seq: int, first: NDArray[np.float32], choices: Sequence[tuple[int, ...]]
) -> NDArray[np.float64]:
    """Log-probability of each choice as the whole answer, normalised over the choices. What all begin with is read once."""
    if not choices:
        return np.empty(0)
    common = next(
        (i for i, column in enumerate(zip(*choices, strict=False)) if len(set(column)) > 1), min(map(len, choices))
    )
    with forked(engine, seq) as stem:
        logits = engine.score(stem, choices[0][:common])[-1] if common else first
        start = log_softmax(logits)
        weights = []
        for choice in choices:
            rest = choice[common:]
            weight = float(start[rest[0]]) if rest else 0.0
            if len(rest) > 1:
                with forked(engine, stem) as branch:
                    rows = engine.score(branch, rest[:-1])
                weight += sum(float(log_softmax(row)[token]) for row, token in zip(rows, rest[1:], strict=True))
            weights.append(weight)
    return np.asarray(np.array(weights) - np.logaddexp.reduce(weights))
