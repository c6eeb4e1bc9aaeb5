"""Keys computed at a position against keys computed at 0 and moved there: every model of the zoo, every KV type.

A sequence of one token attends to itself alone, so whatever its position, every layer sees the same input and its keys
differ by their rotation only. That makes all layers comparable, exactly. Two models are exceptions behind their first
layer, and the tables below say what holds for them instead:

- gpt-oss has attention sinks: a score decides how much of the value gets through, and scores are rounded.
- deepseek2 (MLA) reads its values out of the key cache, so what it stores there in Q4_0 is what the next layer sees.

The source of moved keys is a context whose keys are F32 and whose values have the type of the live context.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import llama_cpp.llama_cpp as api
import numpy as np
import pytest
from numpy.typing import NDArray

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.contract.plan import Decode
from kvnotes_local.engine.llama.context import LlamaContext
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.engine.rotation.live_layout import read_live_layout
from kvnotes_local.engine.sequences.rows_transfer import TransferStats
from kvnotes_local.errors import EngineError
from kvnotes_local.kv.block_types import block_type
from kvnotes_local.kv.hadamard import hadamard
from kvnotes_local.kv.layout import GGMLType, LayerLayout, StateLayout, StateRows, TensorLayout
from kvnotes_local.kv.reposition import reposition, reposition_into
from kvnotes_local.kv.rotation import LayerRotation, ModelRotation, Pairing
from kvnotes_local.kv.rows import concat
from kvnotes_local.kv.state import parse_state
from tests.conftest import REPOSITORY
from tests.kv_oracles import expected_hadamard
from tests.zoo import ZOO, ZooModel, zoo_model

F32, F16, BF16, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0
Q5_1, Q5_0, Q4_1, Q4_0, IQ4_NL = GGMLType.Q5_1, GGMLType.Q5_0, GGMLType.Q4_1, GGMLType.Q4_0, GGMLType.IQ4_NL
FLOATS = (F32, F16, BF16)
BLOCK = 32

Rows = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class KV:
    """Types of keys and values; ``flash`` False: no flash attention, so that values are stored transposed."""

    k: GGMLType
    v: GGMLType
    flash: bool | None = None

    def __str__(self) -> str:
        return f"{self.k.name}/{self.v.name}" + (" without flash attention" if self.flash is False else "")


SAME = tuple(KV(kind, kind) for kind in GGMLType)
MIXED = (KV(F16, Q8_0), KV(Q8_0, F16), KV(BF16, Q5_0), KV(Q5_1, F32), KV(F32, Q4_1), KV(Q4_0, IQ4_NL))
TRANSPOSED = (KV(F32, F32, False), KV(F16, F16, False), KV(Q8_0, F16, False))
N_MIXED = 2

TOKENS = (100, 280, 301)
FOLLOWING = 150

# Largest distance between neighbouring values of a block, in units of the scale in its first two bytes.
STEPS = {Q8_0: 1, Q5_1: 1, Q5_0: 1, Q4_1: 1, Q4_0: 1, IQ4_NL: 24}

EXACT = 1e-6
"""Of the row's largest element. Measured: at most 1.8e-7."""

BEHIND_SINKS = 1e-3
"""The same for gpt-oss behind its first layer. With flash attention llama.cpp reads F32 keys as F16 (``build_attn_mha``
in src/llama-graph.cpp), a score moves by some 1e-4 with the position, and so does what the sink lets through. Measured:
1.6e-4; without flash attention 2.6e-7."""

SPLICE = [spec for spec in ZOO if spec.expected == "splice"]

# phi3 has other frequency factors beyond 1,024 cells.
EVERY_MODEL = pytest.mark.parametrize(
    ("spec", "n_ctx"),
    [pytest.param(spec, 256, id=spec.name) for spec in SPLICE]
    + [pytest.param(spec, 1280, id="phi3-long") for spec in SPLICE if spec.name == "phi3"],
)


def head_sizes(spec: ZooModel, cache: int = 0) -> tuple[int, int]:
    """Of keys and values, as the metadata has them; the second cache is the one of the sliding window."""
    keys = [f".attention.{name}" for name in ("key_length", "value_length")]
    if cache == 1:
        keys = [f"{key}_swa" if f"{key}_swa" in spec.keys else key for key in keys]
    k, v = (spec.keys[key] for key in keys)
    assert isinstance(k, int)
    assert isinstance(v, int)
    return k, v


def is_mla(spec: ZooModel) -> bool:
    return "mla" in spec.variant


def pairs_of(spec: ZooModel) -> tuple[KV, ...]:
    """Every type alike for keys and values, and without flash attention; of the mixed pairs some, each with many models."""
    first = SPLICE.index(spec) * N_MIXED
    return (*SAME, *TRANSPOSED, *(MIXED[(first + i) % len(MIXED)] for i in range(N_MIXED)))


def accepts(spec: ZooModel, kv: KV) -> bool:
    """Whether such a context can be had: blocks have to fit the heads, and MLA has one cache for both."""
    if is_mla(spec) and kv.k is not kv.v:
        return False
    return all(kind in FLOATS or size % BLOCK == 0 for kind, size in zip((kv.k, kv.v), head_sizes(spec), strict=True))


def expected_blocks(spec: ZooModel, kv: KV, cache: int, *, disabled: bool = False) -> tuple[int, int]:
    k_size, v_size = head_sizes(spec, cache)
    if is_mla(spec):
        # llama.cpp announces the matrix for MLA, too (attn_rot_k = 1), but its graph does not apply it there.
        k_size = v_size = 0
    return (
        expected_hadamard(k_size, kv.k, disabled=disabled),
        expected_hadamard(v_size, kv.v, values=True, disabled=disabled),
    )


def params(kv: KV, n_ctx: int) -> EngineParams:
    return EngineParams(
        n_ctx=n_ctx, type_k=kv.k, type_v=kv.v, flash_attn=kv.flash, n_threads=1, n_batch=64, n_ubatch=64
    )


class Probes:
    """Some tokens at some positions, each in a sequence of its own: sequence i holds ``tokens[i]`` at ``positions[i]``."""

    def __init__(self, n_ctx_train: int) -> None:
        at = (0, 1, 777, n_ctx_train - 2)
        self.tokens = [token for _ in at for token in TOKENS]
        self.positions = [position for position in at for _ in TOKENS]
        self.moved = range(len(TOKENS), len(self.tokens))

    def at_zero(self, seq: int) -> int:
        """The sequence that holds the same token at position 0."""
        return seq % len(TOKENS)


def decode(context: LlamaContext, tokens: Sequence[int], positions: Sequence[int]) -> Floats:
    """One token a sequence, all in one batch; float32 (n, n_vocab)."""
    batch = api.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for seq, (token, position) in enumerate(zip(tokens, positions, strict=True)):
        batch.token[seq], batch.pos[seq], batch.n_seq_id[seq], batch.logits[seq] = token, position, 1, 1
        batch.seq_id[seq][0] = seq
    status = api.llama_decode(context.pointer, batch)
    api.llama_batch_free(batch)
    assert status == 0
    return np.stack([context._logits_row(seq).copy() for seq in range(len(tokens))])


def states(context: LlamaContext, layout: StateLayout, n: int) -> list[StateRows]:
    return [parse_state(context.get_state(seq), layout) for seq in range(n)]


@contextmanager
def opened(spec: ZooModel, kv: KV, n_ctx: int, folder: Path, measurements: Path) -> Iterator[LlamaEngine]:
    with LlamaEngine(zoo_model(spec.name, folder), params(kv, n_ctx), cache_dir=measurements) as engine:
        yield engine


@dataclass(frozen=True)
class Source:
    """Rows of the probes from a context whose keys are F32, and the logits of a token that follows each."""

    layout: StateLayout
    rows: list[StateRows]
    logits: Floats


def read_source(engine: LlamaEngine, spec: ZooModel, kv: KV, probes: Probes) -> Source:
    v = F32 if is_mla(spec) else kv.v
    flash = None if kv.flash is False and v not in FLOATS else kv.flash
    context = LlamaContext(engine._model, params(KV(F32, v, flash), engine.info.n_ctx), n_seq=16)
    try:
        layout = read_live_layout(engine._model, context, 0, TOKENS[0])
        decode(context, probes.tokens, probes.positions)
        rows = states(context, layout, len(probes.tokens))
        logits = decode(context, [FOLLOWING] * len(rows), [p + 1 for p in probes.positions])
    finally:
        context.close()
    return Source(layout, rows, logits)


def layers(layout: StateLayout) -> Iterator[tuple[int, int]]:
    for number, cache in enumerate(layout.caches):
        for layer in range(len(cache.layers)):
            yield number, layer


def is_first(layout: StateLayout, cache: int, layer: int) -> bool:
    """The zoo's models with a sliding window begin with a layer that has one: theirs is the second cache."""
    return (cache, layer) == (len(layout.caches) - 1, 0)


def keys(rows: StateRows, cache: int, layer: int) -> Floats:
    """What is stored, as float32 (n, n_embd); Hadamard is left in."""
    return block_type(rows.layout.caches[cache].layers[layer].k.type).dequantize(rows.caches[cache].k[layer])


def true_keys(rows: StateRows, cache: int, layer: int, like: StateLayout) -> Floats:
    """F32 keys behind the transformation that ``like`` has."""
    return hadamard(keys(rows, cache, layer), like.caches[cache].k_hadamard)


def allowed(kind: GGMLType, wanted: Rows, extra: float) -> Floats:
    """How far an element may be from ``wanted``, uint8 (n, row_bytes): one rounding, or one step of its block.

    ``extra``, relative to the row's largest element, is for the float32 arithmetic in front of the rounding.
    """
    values = block_type(kind).dequantize(wanted)
    slack = extra * np.abs(values).max(axis=-1, keepdims=True)
    if kind is F32:
        return np.broadcast_to(slack, values.shape)
    if kind is F16:
        return slack + np.abs(np.spacing(values.astype(np.float16)).astype(np.float32))
    if kind is BF16:
        return slack + np.spacing(np.abs(values)) * np.float32(1 << 16)
    blocks = np.ascontiguousarray(wanted).reshape(-1, block_type(kind).type_size)
    scale = np.abs(np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32))
    step = np.repeat(STEPS[kind] * scale, BLOCK, axis=1).reshape(values.shape)
    # The scale itself is a rounded F16 number and may be its neighbour.
    return slack + step + 2e-3 * np.abs(values)


def assert_same_rows(
    moved: StateRows, direct: StateRows, extra: float, where: str, only_first: bool
) -> tuple[int, int]:
    """Keys within one step, values as they are; returns how many bytes of keys differ, and of how many."""
    differing = total = 0
    for cache, layer in layers(direct.layout):
        first = is_first(direct.layout, cache, layer)
        if only_first and not first:
            continue
        here = f"{where}, cache {cache}, layer {layer}"
        kind = direct.layout.caches[cache].layers[layer].k.type
        found, wanted = moved.caches[cache].k[layer], direct.caches[cache].k[layer]
        off = np.abs(keys(moved, cache, layer) - keys(direct, cache, layer))
        limit = allowed(kind, wanted, EXACT if first else extra) * (1 if first or extra == EXACT else 2)
        assert (off <= limit).all(), f"{here}: keys are off by {(off / limit).max():.2f} of what is allowed"
        if first or extra == EXACT:
            differing += int((found != wanted).sum())
            total += wanted.size
            v, wanted_v = moved.caches[cache].v[layer], direct.caches[cache].v[layer]
            assert (v is None) == (wanted_v is None), here
            assert v is None or wanted_v is None or np.array_equal(v, wanted_v), f"{here}: values have changed"
    return differing, total


@EVERY_MODEL
def test_moved_keys_are_those_computed_there_and_so_are_the_logits(
    spec: ZooModel, n_ctx: int, zoo_directory: Path, measurements: Path
) -> None:
    for kv in pairs_of(spec):
        where = f"{spec.name}, {kv}"
        if not accepts(spec, kv):
            with (
                pytest.raises(EngineError, match=r"does not divide|different K .* and V"),
                opened(spec, kv, n_ctx, zoo_directory, measurements),
            ):
                pass
            continue
        with opened(spec, kv, n_ctx, zoo_directory, measurements) as engine:
            assert engine.info.model_class == "splice", f"{where}: {engine.info.class_reason}"
            assert_layout(engine.layout, spec, kv, where)
            probes = Probes(engine.info.n_ctx_train)
            source = read_source(engine, spec, kv, probes)
            decode(engine._context, probes.tokens, probes.positions)
            live = states(engine._context, engine.layout, len(probes.tokens))
            assert_keys(engine, spec, kv, probes, source, live, where)
            assert_logits(engine, spec, kv, probes, source, live, where)


def assert_layout(layout: StateLayout, spec: ZooModel, kv: KV, where: str) -> None:
    for number, cache in enumerate(layout.caches):
        assert {layer.k.type for layer in cache.layers} == {kv.k}, where
        assert {layer.v.type for layer in cache.layers if layer.v is not None} <= {kv.v}, where
        assert (cache.layers[0].v is None) == is_mla(spec), where
        assert (cache.k_hadamard, cache.v_hadamard) == expected_blocks(spec, kv, number), where
        assert cache.v_trans == (kv.flash is False), where
        assert cache.has_ext == any("m-rope" in word for word in spec.variant), where


def assert_keys(
    engine: LlamaEngine,
    spec: ZooModel,
    kv: KV,
    probes: Probes,
    source: Source,
    live: list[StateRows],
    where: str,
) -> None:
    extra = BEHIND_SINKS if "sinks" in spec.variant else EXACT
    other_inputs = is_mla(spec) and kv.k is not F32
    differing = total = 0
    for seq in probes.moved:
        here = f"{where}, moved from 0 to {probes.positions[seq]}"
        rows = engine._transfer.moved(source.rows[probes.at_zero(seq)], probes.positions[seq], engine.layout)
        n, of = assert_same_rows(rows, live[seq], extra, here, other_inputs)
        differing, total = differing + n, total + of
        # What is moved within the live cache was rounded before and is rounded again: both errors, and llama.cpp's own.
        twice = engine._transfer.moved(live[probes.at_zero(seq)], probes.positions[seq], engine.layout)
        for cache, layer in layers(engine.layout):
            true = true_keys(source.rows[seq], cache, layer, engine.layout)
            true_zero = true_keys(source.rows[probes.at_zero(seq)], cache, layer, engine.layout)
            direct = keys(live[seq], cache, layer)
            budget = 2.5 * np.linalg.norm(direct - true) + np.linalg.norm(
                keys(live[probes.at_zero(seq)], cache, layer) - true_zero
            )
            off = np.linalg.norm(keys(twice, cache, layer) - direct)
            assert off <= budget + extra * np.linalg.norm(true), f"{here}, cache {cache}, layer {layer}"
    # Where float32 noise tips a rounding, bytes differ; a second rounding would change a third of them.
    if kv.k is not F32:
        assert differing <= 0.01 * total, f"{where}: {differing} of {total} bytes differ"


def assert_logits(
    engine: LlamaEngine,
    spec: ZooModel,
    kv: KV,
    probes: Probes,
    source: Source,
    live: list[StateRows],
    where: str,
) -> None:
    """A token behind moved keys gets the logits that it gets behind computed ones.

    Tolerance: twice of what rounding keys to the live type does to these logits, as measured, and four times of it where
    keys were rounded before they were moved; at least eight roundings to F16, since flash attention reads F32 keys as F16
    and hides that effect. Without it F32 stays F32. With experts, one token may get others than before: choosing them has
    no tolerance.
    """
    following = [p + 1 for p in probes.positions]
    n = len(following)
    direct = decode(engine._context, [FOLLOWING] * n, following)
    largest = np.abs(direct).max()
    floor = 1e-5 if kv.k is F32 and kv.flash is False else 2.0**-8
    own = np.abs(direct - source.logits).max()
    for name, origin, factor in (("F32", source.rows, 2), (kv.k.name, live, 4)):
        for seq in range(n):
            engine._context.remove(seq, 0)
            engine._transfer.write(origin[probes.at_zero(seq)], seq, probes.positions[seq], TransferStats())
        found = decode(engine._context, [FOLLOWING] * n, following)
        off = np.sort(np.abs(found - direct).max(axis=-1))[-2 if "experts" in spec.variant else -1]
        assert off <= factor * own + floor * largest, (
            f"{where}, moved from {name}: logits are off by {off / largest:.1e}"
        )


# --- one rounding ----------------------------------------------------------------------------------------------------


def as_artifact(rows: StateRows) -> StateRows:
    """The same rows in F16, as a compiled skill stores them."""
    half = StateLayout(
        tuple(
            replace(
                cache,
                k_hadamard=0,
                v_hadamard=0,
                v_trans=False,
                layers=tuple(
                    LayerLayout(TensorLayout(F16, y.k.n_embd), None if y.v is None else TensorLayout(F16, y.v.n_embd))
                    for y in cache.layers
                ),
            )
            for cache in rows.layout.caches
        )
    )
    still = tuple(
        tuple(LayerRotation(1, y.k.n_embd, 0, 0, Pairing.HALVES, np.zeros(0)) for y in c.layers) for c in half.caches
    )
    return reposition(rows, half, ModelRotation(still), 0)


def error(rows: StateRows, true: StateRows) -> float:
    """Root mean square distance of all first-layer keys from F32 ones, relative to their length."""
    cache = len(rows.layout.caches) - 1
    wanted = true_keys(true, cache, 0, rows.layout)
    return float(np.linalg.norm(keys(rows, cache, 0) - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "glm4", "phi3", "deepseek2-heads"])
def test_rows_of_an_artifact_are_rounded_once_on_their_way_into_the_live_cache(
    name: str, zoo_directory: Path, measurements: Path
) -> None:
    """Their error is that of the rows which llama.cpp computes there; rounding twice would give 1.4 times as much."""
    spec = {model.name: model for model in ZOO}[name]
    for kind in GGMLType:
        kv = KV(kind, kind)
        with opened(spec, kv, 256, zoo_directory, measurements) as engine:
            probes = Probes(engine.info.n_ctx_train)
            source = read_source(engine, spec, kv, probes)
            decode(engine._context, probes.tokens, probes.positions)
            live = states(engine._context, engine.layout, len(probes.tokens))
            own = once = twice = 0.0
            for seq in probes.moved:
                at, zero = probes.positions[seq], probes.at_zero(seq)
                true = source.rows[seq]
                own += error(live[seq], true)
                once += error(engine._transfer.moved(as_artifact(source.rows[zero]), at, engine.layout), true)
                twice += error(engine._transfer.moved(live[zero], at, engine.layout), true)
            n = len(probes.moved)
            if kind in (F32, F16):
                assert once / n <= 2.0**-11, f"{name}, {kv}"  # the artifact itself is F16
            else:
                assert once <= 1.03 * own, f"{name}, {kv}: {once / n:.2e} instead of {own / n:.2e}"
                assert twice >= 1.1 * own, f"{name}, {kv}: rounding twice does not show, so this test shows nothing"


# --- distances -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [F32, F16, Q8_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", ["llama-factors", "gemma3", "deepseek2-heads", "qwen2vl", "glm4"])
def test_rows_move_backwards_and_by_different_distances_over_gaps(
    name: str, kind: GGMLType, zoo_directory: Path, measurements: Path
) -> None:
    spec, kv = {model.name: model for model in ZOO}[name], KV(kind, kind)
    with opened(spec, kv, 256, zoo_directory, measurements) as engine:
        probes = Probes(engine.info.n_ctx_train)
        source = read_source(engine, spec, kv, probes)
        decode(engine._context, probes.tokens, probes.positions)
        live = states(engine._context, engine.layout, len(probes.tokens))
        rotation = engine._classified.rotation
        assert rotation is not None
        n = len(TOKENS)
        # Tokens 0, 1, 2 from positions 1, 777 and the last one to 0, 1 and 777; then the other way round.
        backwards = [n, 2 * n + 1, 3 * n + 2], [0, n + 1, 2 * n + 2]
        for old, new in (backwards, backwards[::-1]):
            old_at, new_at = ([probes.positions[seq] for seq in seqs] for seqs in (old, new))
            joined = concat([source.rows[seq] for seq in old])
            targets = [np.array(new_at)] * len(engine.layout.caches)
            moved = reposition(joined, engine.layout, rotation, targets)
            wanted = concat([live[seq] for seq in new])
            assert_same_rows(moved, wanted, EXACT, f"{name}, {kv}, from {old_at} to {new_at}", False)
            # And llama.cpp takes the blob and gives the same rows out again, as far as no window masks them.
            spare = engine._transfer._spare
            engine._context.set_state(spare, reposition_into(joined, engine.layout, rotation, targets))
            back = parse_state(engine._context.get_state(spare), engine.layout)
            engine._context.remove(spare, 0)
            assert back.caches[0].pos.tolist() == new_at
            for ours, theirs in zip(moved.caches[0].k, back.caches[0].k, strict=True):
                np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kv", [KV(Q8_0, Q8_0), KV(F16, F16, False), KV(Q4_0, BF16)], ids=str)
@pytest.mark.parametrize("name", ["llama-yarn", "gemma4", "qwen2vl", "cohere2", "phi3"])
def test_no_distance_copies_a_real_blob_bit_by_bit(name: str, kv: KV, zoo_directory: Path, measurements: Path) -> None:
    spec = {model.name: model for model in ZOO}[name]
    with opened(spec, kv, 256, zoo_directory, measurements) as engine:
        seq = engine.new_sequence()
        engine.apply(seq, [Decode(tuple(engine.tokenize("The lamp on the quay is lit from dusk to dawn. " * 4)))])
        blob = engine._context.get_state(seq)
        rotation = engine._classified.rotation
        assert rotation is not None
        rows = parse_state(blob, engine.layout)
        assert reposition_into(rows, engine.layout, rotation, 0, seq_id=seq) == blob


# --- what is detected ------------------------------------------------------------------------------------------------

_PRINT_BLOCKS = """
import json, sys
from pathlib import Path
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.contract.plan import Decode
from kvnotes_local.kv.layout import GGMLType

found = {}
for path in sys.argv[1:]:
    with LlamaEngine(Path(path), EngineParams(n_ctx=256, type_k=GGMLType.Q8_0, type_v=GGMLType.Q4_0, n_threads=1)) as engine:
        found[path] = [(cache.k_hadamard, cache.v_hadamard) for cache in engine.layout.caches]
print(json.dumps(found))
"""


@pytest.mark.parametrize("disabled", [False, True], ids=["on", "off"])
def test_it_is_detected_whether_llama_cpp_uses_hadamard_matrices(disabled: bool, zoo_directory: Path) -> None:
    """llama.cpp reads the environment variable; nothing in the model or in a blob tells."""
    specs = {
        str(zoo_model(spec.name, zoo_directory)): spec for spec in SPLICE if spec.name in {"llama", "gemma4", "qwen3"}
    }
    environment = {key: value for key, value in os.environ.items() if key != "LLAMA_ATTN_ROT_DISABLE"}
    if disabled:
        environment["LLAMA_ATTN_ROT_DISABLE"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", _PRINT_BLOCKS, *specs],
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    for path, found in json.loads(done.stdout).items():
        for number, blocks in enumerate(found):
            assert tuple(blocks) == expected_blocks(specs[path], KV(Q8_0, Q4_0), number, disabled=disabled), path
            assert (sum(blocks) == 0) is disabled, path


REASONS = {
    "mamba": "recurrent model",
    "falcon-h1": "hybrid model",
    "granitehybrid": "hybrid model",
    "gpt2": r"not a rotation .* wrong by \d",
    "hunyuan-dense": r"not a rotation .* wrong by 0\.\d",
    "minimax-m3": "wrote only zeros as keys of layer",
}


@pytest.mark.parametrize("spec", ZOO, ids=lambda spec: spec.name)
def test_the_engine_classes_a_model_and_says_why(spec: ZooModel, zoo_directory: Path, measurements: Path) -> None:
    with opened(spec, KV(F16, F16), 256, zoo_directory, measurements) as engine:
        info = engine.info
        assert info.model_class == spec.expected, info.class_reason
        if spec.expected == "splice":
            assert info.rotation_residual is not None
            assert info.rotation_residual < EXACT
            assert f"worst residual {info.rotation_residual:.1e}" in info.class_reason
        else:
            assert re.search(REASONS[spec.name], info.class_reason), info.class_reason
            with pytest.raises(EngineError, match=r"cache of .* is not understood"):
                _ = engine.layout
