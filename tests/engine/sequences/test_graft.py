"""Rows of one sequence in another: all of them make it the other one, layers can be mixed, and tokens stay true."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from kvnotes_local.contract.plan import Decode, Graft, Keep, Part
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.errors import EngineError
from kvnotes_local.kv.layout import GGMLType
from tests.conftest import MakeEngine

A = "The roof is open today. Visitors may go up when they like."
B = "The roof is shut today. Visitors may go up when they like."
LONGER = "The roof is closed for all today. Visitors may go up when they like."


@dataclass
class Pair:
    """Two texts in two sequences of one engine."""

    engine: LlamaEngine

    def __post_init__(self) -> None:
        self.tokens = {name: tuple(self.engine.tokenize(name)) for name in (A, B, LONGER)}
        self.seqs = {name: self.engine.new_sequence() for name in (A, B, LONGER)}
        for name, seq in self.seqs.items():
            self.engine.apply(seq, [Decode(self.tokens[name])])

    def after(self, name: str, *parts: Part) -> np.ndarray:
        """Logits for one more token behind a fork of a text that a plan has changed."""
        fork = self.engine.fork(self.seqs[name], len(self.tokens[name]))
        try:
            self.engine.apply(fork, [*parts, Decode((70,))])
            self.engine.check(fork)
            return self.engine.logits(fork)
        finally:
            self.engine.free_sequence(fork)


# llama: one cache; gemma3: two, one with a sliding window.
@pytest.fixture(params=[("llama", GGMLType.F32), ("gemma3", GGMLType.F32), ("llama", GGMLType.Q8_0)])
def pair(request: pytest.FixtureRequest, tiny_engine: MakeEngine) -> Pair:
    name, kv_type = request.param
    return Pair(tiny_engine(name, kv_type=kv_type))


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max() < 0.02 * np.abs(b).max())


def test_all_rows_of_another_sequence_make_it_the_other_one(pair: Pair) -> None:
    n = len(pair.tokens[A])
    wanted = pair.after(B, Keep(0, n))
    assert close(pair.after(A, Graft(pair.seqs[B], 0, n)), wanted)
    assert not close(pair.after(A, Keep(0, n)), wanted)


def test_layer_ranges_that_cover_all_layers_are_all_rows(pair: Pair) -> None:
    n = len(pair.tokens[A])
    wanted = pair.after(B, Keep(0, n))
    halves = [Graft(pair.seqs[B], 0, n, 0, (0.0, 0.5)), Graft(pair.seqs[B], 0, n, 0, (0.5, 1.0))]
    first, second = (pair.after(A, half) for half in halves)
    assert not close(first, wanted)
    assert not close(first, second)
    fork = pair.engine.fork(pair.seqs[A], n)
    pair.engine.apply(fork, [halves[0]])
    pair.engine.apply(fork, [halves[1]])
    assert pair.engine.tokens(fork) == pair.tokens[A]
    pair.engine.apply(fork, [Keep(0, n), Decode((70,))])
    assert close(pair.engine.logits(fork), wanted)


def test_rows_that_land_elsewhere_are_turned(pair: Pair) -> None:
    """The beginning of the longer text, then the shorter one's end behind it, as if the value had been edited in place."""
    a, longer = pair.tokens[A], pair.tokens[LONGER]
    tail = len(pair.engine.tokenize(" today. Visitors may go up when they like."))
    wanted = pair.after(A, Keep(0, len(a)))
    grafted = pair.after(LONGER, Graft(pair.seqs[A], 0, len(a) - tail), Graft(pair.seqs[A], len(a) - tail, len(a)))
    assert close(grafted, wanted)
    moved = pair.after(A, Graft(pair.seqs[LONGER], 0, len(longer) - tail), Keep(len(a) - tail, len(a)))
    mirrored = pair.after(LONGER, Keep(0, len(longer) - tail), Graft(pair.seqs[A], len(a) - tail, len(a)))
    assert close(mirrored, moved)


def test_rows_that_are_not_there_are_refused_and_nothing_changes(pair: Pair) -> None:
    n = len(pair.tokens[A])
    seq = pair.seqs[A]
    with pytest.raises(EngineError, match="takes rows"):
        pair.engine.apply(seq, [Graft(pair.seqs[B], 0, n + 1)])
    with pytest.raises(EngineError, match="mixes with rows"):
        pair.engine.apply(seq, [Graft(pair.seqs[B], 0, 4, n - 2, (0.0, 0.5))])
    with pytest.raises(EngineError, match="no sequence"):
        pair.engine.apply(seq, [Graft(9, 0, 1)])
    assert pair.engine.tokens(seq) == pair.tokens[A]
    pair.engine.check(seq)


def test_models_with_a_recurrent_state_refuse(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine("mamba")
    one, two = engine.new_sequence(), engine.new_sequence()
    for seq in (one, two):
        engine.apply(seq, [Decode((70, 71, 72))])
    with pytest.raises(EngineError, match="cannot be taken"):
        engine.apply(one, [Keep(0, 1), Graft(two, 1, 3)])
