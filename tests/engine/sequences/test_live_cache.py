"""What goes in and out of a live cache: llama.cpp's own blobs, its own K-shift, and ours."""

from __future__ import annotations

from collections.abc import Callable

import llama_cpp.llama_cpp as api
import numpy as np
import pytest

from kvnotes_local.contract.plan import Decode, Keep
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.kv.block_types import block_type
from kvnotes_local.kv.layout import GGMLType, StateRows
from kvnotes_local.kv.state import parse_state, write_state

TEXT = "The lamp on the quay is lit from dusk to dawn. Whoever passes it counts the steps to the next one. " * 3
MakeEngine = Callable[..., LlamaEngine]


def keys_and_values(rows: StateRows, cache: int, layer: int) -> tuple[np.ndarray, np.ndarray | None]:
    layout = rows.layout.caches[cache].layers[layer]
    v = rows.caches[cache].v[layer]
    return (
        block_type(layout.k.type).dequantize(np.ascontiguousarray(rows.caches[cache].k[layer])),
        None if v is None or layout.v is None else block_type(layout.v.type).dequantize(np.ascontiguousarray(v)),
    )


@pytest.mark.parametrize("kv_type", [GGMLType.F16, GGMLType.Q8_0], ids=lambda kv_type: kv_type.name)
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "deepseek2", "qwen2vl"])
def test_blob_of_a_live_sequence_is_written_back_byte_by_byte(
    tiny_engine: MakeEngine, name: str, kv_type: GGMLType
) -> None:
    engine = tiny_engine(name, kv_type=kv_type)
    seq = engine.new_sequence()
    engine.apply(seq, [Decode(tuple(engine.tokenize(TEXT)))])
    blob = engine._context.get_state(seq).tobytes()
    assert bytes(write_state(parse_state(blob, engine.layout), seq)) == blob


@pytest.mark.parametrize("distance", [1, 100, 333])
@pytest.mark.parametrize("kv_type", [GGMLType.F16, GGMLType.Q8_0], ids=lambda kv_type: kv_type.name)
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_moved_keys_are_those_of_llama_cpps_own_k_shift(
    tiny_engine: MakeEngine, name: str, kv_type: GGMLType, distance: int
) -> None:
    engine = tiny_engine(name, kv_type=kv_type)
    tokens = engine.tokenize(TEXT)[:200]
    seq, other = engine.new_sequence(), engine.new_sequence()
    engine.apply(seq, [Decode(tuple(tokens))])
    before = engine._transfer.read(seq, 0, len(tokens))
    ours = engine._transfer.moved(before, distance, engine.layout)

    context = engine._context
    api.llama_memory_seq_add(context.memory, seq, 0, -1, distance)
    context.decode(other, tokens[:1], 0, logits=True)  # llama.cpp shifts when it decodes next
    theirs = parse_state(context.get_state(seq), engine.layout)

    assert theirs.caches[0].pos.tolist() == ours.caches[0].pos.tolist()
    for layer in range(len(engine.layout.caches[0].layers)):
        (mine, _), (wanted, _) = keys_and_values(ours, 0, layer), keys_and_values(theirs, 0, layer)
        (old, _) = keys_and_values(before, 0, layer)
        assert np.abs(mine - old).max() > 0.1 * np.abs(old).max(), "nothing moved, so nothing was compared"
        if kv_type is GGMLType.F16:
            assert np.abs(mine - wanted).max() <= 2e-3 * np.abs(wanted).max()
        else:
            # One step of a Q8_0 block is its largest element / 127; both sides round once from F32.
            blocks = wanted.reshape(len(wanted), -1, 32)
            step = np.abs(blocks).max(axis=-1, keepdims=True) / 127
            assert (np.abs(mine.reshape(blocks.shape) - blocks) <= 1.01 * step + 1e-6).all()


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "stablelm", "deepseek2", "phi3", "cohere2", "qwen2vl"])
def test_rows_kept_elsewhere_give_the_logits_of_reading_them_there(tiny_engine: MakeEngine, name: str) -> None:
    """Layer 1 sees other things at another place, so the rows are read alone: one token attends to itself only."""
    engine = tiny_engine(name)
    a, b = engine.tokenize("lamp")[:1], engine.tokenize("quay")[:1]
    here, there = engine.new_sequence(), engine.new_sequence()
    engine._context.decode(here, a, 300)
    rows = parse_state(engine._context.get_state(here), engine.layout)
    engine._transfer.write(rows, there, 700, _stats())
    direct = engine.new_sequence()
    engine._context.decode(direct, a, 700)
    engine._context.decode(direct, b, 701, logits=True)
    wanted = engine._context.last_logits()
    engine._context.decode(there, b, 701, logits=True)
    found = engine._context.last_logits()
    assert np.abs(found - wanted).max() <= 1e-3 * np.abs(wanted).max()


def test_a_tail_that_is_kept_behind_a_longer_beginning_is_moved_not_decoded(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine("llama")
    tokens = tuple(engine.tokenize(TEXT))
    seq = engine.new_sequence()
    engine.apply(seq, [Decode(tokens)])
    new = tuple(engine.tokenize("Twice as much. "))
    applied = engine.apply(seq, [Keep(0, 50), Decode(new), Keep(50, len(tokens))], logits=False)
    assert (applied.reused, applied.decoded, applied.moved) == (50, len(new), len(tokens) - 50)
    assert engine.tokens(seq) == tokens[:50] + new + tokens[50:]
    assert engine._context.last_position(seq) == len(tokens) + len(new) - 1


def test_a_fork_copies_no_cells(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine("llama", n_ctx=512)
    tokens = tuple(engine.tokenize(TEXT))[:250]
    seq = engine.new_sequence()
    engine.apply(seq, [Decode(tokens)])
    forks = [engine.fork(seq, 240) for _ in range(5)]
    # 5 × 240 copied cells would not fit into the context of 512.
    for fork in forks:
        engine.apply(fork, [Keep(0, 240), Decode(tokens[:10])])
        assert engine.tokens(fork) == tokens[:240] + tokens[:10]


def test_cancel_leaves_the_sequence_as_it_was(tiny_engine: MakeEngine) -> None:
    from kvnotes_local.errors import Cancelled

    engine = tiny_engine("llama", n_ctx=2048, n_batch=64, n_ubatch=64)
    tokens = tuple(engine.tokenize(TEXT * 5))
    seq = engine.new_sequence()
    engine.apply(seq, [Decode(tokens[:100])])

    def stop(done: int, total: int) -> None:
        if done > 300:
            engine.cancel()

    with pytest.raises(Cancelled):
        engine.apply(seq, [Keep(0, 100), Decode(tokens[100:1500])], progress=stop)
    assert engine.tokens(seq) == tokens[:100]
    assert engine._context.last_position(seq) == 99
    engine.apply(seq, [Keep(0, 100), Decode(tokens[100:200])])
    assert engine.tokens(seq) == tokens[:200]


def test_a_plan_that_does_not_fit_beside_the_old_rows_is_carried_out_in_place(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine("llama", n_ctx=512)
    tokens = tuple(engine.tokenize(TEXT * 2))[:400]
    seq = engine.new_sequence()
    engine.apply(seq, [Decode(tokens)])
    new = tuple(engine.tokenize("Mind the gap. "))
    engine.apply(seq, [Keep(0, 20), Decode(new), Keep(20, 400)])
    roomy = tiny_engine("llama", n_ctx=2048)
    other = roomy.new_sequence()
    roomy.apply(other, [Decode(tokens)])
    roomy.apply(other, [Keep(0, 20), Decode(new), Keep(20, 400)])
    assert engine.tokens(seq) == roomy.tokens(other) == tokens[:20] + new + tokens[20:]
    last = tuple(engine.tokenize("x"))
    length = len(engine.tokens(seq))
    engine.apply(seq, [Keep(0, length), Decode(last)])
    roomy.apply(other, [Keep(0, length), Decode(last)])
    assert np.abs(engine.logits(seq) - roomy.logits(other)).max() <= 1e-3 * np.abs(roomy.logits(other)).max()


def _stats():  # type: ignore[no-untyped-def]
    from kvnotes_local.engine.sequences.rows_transfer import TransferStats

    return TransferStats()
