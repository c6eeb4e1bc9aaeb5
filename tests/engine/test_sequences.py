"""Who is in the context: forks for undo give way, idle sequences are put aside, and what comes back is what left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvnotes_local.contract.plan import Decode, Keep
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.errors import EngineError
from tests.conftest import both_engines

MakeEngine = Callable[..., LlamaEngine]
TEXT = "The lamp on the quay is green, and it is lit from dusk to dawn. "


def text(engine: LlamaEngine, number: int, n: int = 60) -> tuple[int, ...]:
    return tuple(engine.tokenize(f"{number} is the number. " + TEXT * 4))[:n]


def next_logits(engine: LlamaEngine, seq: int) -> np.ndarray:
    n = len(engine.tokens(seq))
    engine.apply(seq, [Keep(0, n), Decode((5,))])
    return engine.logits(seq)


@both_engines
@pytest.mark.parametrize("name", ["llama", "gemma3", "falcon-h1", "mamba"])
def test_sequences_beyond_what_the_context_takes_come_back_as_they_were(tiny_engine: MakeEngine, name: str) -> None:
    """More sequences than places, and more tokens than cells."""
    engine = tiny_engine(name, n_ctx=256, n_sequences=5)
    alone = tiny_engine(name, n_ctx=256, n_sequences=5)
    seqs = [engine.new_sequence() for _ in range(8)]
    for number, seq in enumerate(seqs):
        engine.apply(seq, [Decode(text(engine, number))], logits=False)
    for number in (0, 5, 1, 7, 0):
        wanted = alone.new_sequence()
        held = engine.tokens(seqs[number])
        assert held[:60] == text(engine, number)
        engine.check(seqs[number])
        alone.apply(wanted, [Decode(held)], logits=False)
        expected, found = next_logits(alone, wanted), next_logits(engine, seqs[number])
        assert np.abs(found - expected).max() <= 2e-3 * np.abs(expected).max()
        alone.free_sequence(wanted)
    for seq in seqs:
        engine.free_sequence(seq)


def test_forks_for_undo_give_way_first_and_make_no_chat_give_way(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine("llama", n_ctx=1024, n_sequences=6)
    first = engine.new_sequence()
    engine.apply(first, [Decode(text(engine, 1))], logits=False)
    forks = [engine.fork(first, 60, for_undo=True) for _ in range(3)]
    others = [engine.new_sequence() for _ in range(2)]
    assert [len(engine.tokens(fork)) for fork in forks] == [0, 0, 60], "the oldest go first"
    others.append(engine.new_sequence())
    assert [len(engine.tokens(fork)) for fork in forks] == [0, 0, 0]
    with pytest.raises(EngineError, match="--sequences"):
        engine.fork(first, 60, for_undo=True)
    assert len(engine.tokens(first)) == 60


def test_a_sequence_whose_state_cannot_be_kept_holds_nothing(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine("llama", n_ctx=256, n_sequences=4)
    engine._shelf._memory_limit, engine._shelf._directory = 0, None
    first = engine.new_sequence()
    engine.apply(first, [Decode(text(engine, 1))], logits=False)
    for number in (2, 3):
        engine.apply(engine.new_sequence(), [Decode(text(engine, number))], logits=False)
    assert engine.tokens(first) == ()
    engine.check(first)
    engine.apply(first, [Decode(text(engine, 1))], logits=False)
    assert engine.tokens(first) == text(engine, 1)


def test_what_was_put_aside_on_disk_is_gone_when_it_is_not_needed(tiny_engine: MakeEngine, measurements) -> None:  # type: ignore[no-untyped-def]
    engine = tiny_engine("llama", n_ctx=256, n_sequences=4)
    states = measurements / "states"
    before = set(states.iterdir()) if states.exists() else set()
    engine._shelf._memory_limit = 0
    seqs = [engine.new_sequence() for _ in range(4)]
    for number, seq in enumerate(seqs):
        engine.apply(seq, [Decode(text(engine, number))], logits=False)
    assert len(set(states.iterdir()) - before) == 2
    assert engine.tokens(seqs[0]) == text(engine, 0)
    engine.free_sequence(seqs[0])
    engine.close()
    assert set(states.iterdir()) == before


@pytest.mark.parametrize("n", [3, 257])
def test_a_number_of_sequences_that_cannot_be_is_refused(tiny_engine: MakeEngine, n: int) -> None:
    with pytest.raises(EngineError, match="--sequences 4 to 256"):
        tiny_engine("llama", n_sequences=n)
