"""Moving rows: against ggml's RoPE and quantizers, and the promises about what is copied bit by bit."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import ggml_oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_samples import F16, LAYOUTS, Q8, assert_same_rows, cache, decoded, random_rows, rotation_for
from numpy.typing import NDArray

from kvnotes_local.errors import LayoutError, RotationError
from kvnotes_local.kv.angles import AngleArithmetic, theta_scale
from kvnotes_local.kv.block_types import block_type
from kvnotes_local.kv.converter import NUMPY
from kvnotes_local.kv.hadamard import hadamard
from kvnotes_local.kv.layout import CacheLayout, CacheRows, GGMLType, StateLayout, StateRows
from kvnotes_local.kv.reposition import reposition, reposition_into
from kvnotes_local.kv.rotation import LayerRotation, ModelRotation, Pairing, angles
from kvnotes_local.kv.state import parse_state, write_state
from tests.kv_oracles import rotate

F32 = GGMLType.F32


def with_types(layout: StateLayout, k: GGMLType, v: GGMLType, block: int = 0) -> StateLayout:
    def one(described: CacheLayout) -> CacheLayout:
        layers = tuple(
            replace(y, k=replace(y.k, type=k), v=None if y.v is None else replace(y.v, type=v))
            for y in described.layers
        )
        return replace(described, layers=layers, v_trans=False, k_hadamard=block, v_hadamard=block)

    return StateLayout(tuple(one(c) for c in layout.caches))


def head_rows(keys: NDArray[np.float32], pos: NDArray[np.int32], values: NDArray[np.float32]) -> StateRows:
    """F32 rows of one layer from keys (n, n_head, head_dim)."""
    flat = keys.reshape(len(keys), -1)
    layout = StateLayout((cache(1, F32, F32, flat.shape[1]),))
    codec = block_type(F32)
    return StateRows(layout, (CacheRows(pos, (codec.quantize(flat),), (codec.quantize(values),)),))


@pytest.mark.parametrize("pairing", Pairing)
@pytest.mark.parametrize("distance", [1, 777, 60000, -900])
def test_moved_keys_are_the_ones_ggml_computes_at_the_new_position(pairing: Pairing, distance: int) -> None:
    rng = np.random.default_rng(0)
    raw = rng.standard_normal((40, 2, 64)).astype(np.float32)
    old = np.arange(1000, 1040, dtype=np.int32)
    mode = {Pairing.ADJACENT: 0, Pairing.HALVES: 2}[pairing]

    def at(pos: NDArray[np.int32]) -> NDArray[np.float32]:
        return ggml_oracle.rope(raw, pos, n_rot=64, mode=mode, freq_base=10000.0).reshape(40, -1)

    frequencies = 10000.0 ** -(np.arange(32) / 32)
    exact = LayerRotation(2, 64, 0, 64, pairing, frequencies, AngleArithmetic(theta_scale(10000.0, 64)))
    rows = head_rows(at(old), old, raw.reshape(40, -1))
    moved = reposition(rows, rows.layout, ModelRotation(((exact,),)), distance)
    keys, values = decoded(moved)
    np.testing.assert_array_equal(moved.caches[0].pos, old + distance)
    np.testing.assert_array_equal(values, raw.reshape(40, -1))
    np.testing.assert_allclose(keys, at(old + distance), atol=3e-6)
    ideal = ModelRotation(((replace(exact, arithmetic=None),),))
    np.testing.assert_allclose(decoded(reposition(rows, rows.layout, ideal, distance))[0], keys, atol=0.05)


@pytest.mark.parametrize("name", LAYOUTS)
def test_distance_zero_copies_bit_by_bit(name: str) -> None:
    """Whatever the bytes mean, NaN and negative zero included."""
    layout = LAYOUTS[name]
    rng = np.random.default_rng(0)

    def noise(rows: NDArray[np.uint8] | None) -> NDArray[np.uint8] | None:
        return None if rows is None else rng.integers(0, 256, rows.shape, dtype=np.uint8)

    sample = random_rows(layout, (7, 5, 3)[: len(layout.caches)])
    caches = tuple(replace(c, k=tuple(map(noise, c.k)), v=tuple(map(noise, c.v))) for c in sample.caches)  # type: ignore[arg-type]
    rows = StateRows(layout, caches)
    moved = reposition(rows, layout, rotation_for(layout), 0)
    assert_same_rows(moved, rows)
    assert reposition_into(rows, layout, rotation_for(layout), 0, seq_id=3) == write_state(rows, 3)
    same_places = reposition(rows, layout, rotation_for(layout), [c.pos for c in rows.caches])
    assert_same_rows(same_places, rows)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("types", [(F32, F32), (F16, F16), (Q8, Q8), (GGMLType.Q4_0, GGMLType.Q5_1)])
def test_writing_into_a_blob_is_the_same_as_writing_the_rows(name: str, types: tuple[GGMLType, GGMLType]) -> None:
    rows = random_rows(LAYOUTS[name], (7, 5, 3)[: len(LAYOUTS[name].caches)])
    to = with_types(LAYOUTS[name], *types, block=32)
    rotation = rotation_for(to)
    assert reposition_into(rows, to, rotation, 11, seq_id=1) == write_state(reposition(rows, to, rotation, 11), 1)


def test_values_are_written_transposed_where_flash_attention_is_off() -> None:
    rows = random_rows(LAYOUTS["plain F16"], (7,))
    to = StateLayout((cache(3, F32, F16, v_trans=True),))
    blob = reposition_into(rows, to, rotation_for(to), 4)
    assert_same_rows(parse_state(blob, to), reposition(rows, to, rotation_for(to), 4))
    for ours, theirs in zip(parse_state(blob, to).caches[0].v, rows.caches[0].v, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    to = StateLayout((cache(3, F16, F32, v_trans=True),))
    blob = reposition_into(rows, to, rotation_for(to), 4)
    np.testing.assert_array_equal(decoded(parse_state(blob, to))[3:], decoded(rows)[3:])


@pytest.mark.parametrize("live", [t for t in GGMLType if t not in (F32, F16, GGMLType.BF16)], ids=lambda t: t.name)
def test_f16_to_a_quantized_cache_is_exactly_one_quantization(live: GGMLType) -> None:
    rows = random_rows(StateLayout((cache(2, F16, F16, 128),)), (9,))
    to = StateLayout((cache(2, live, live, 128, k_hadamard=128, v_hadamard=64),))
    rotation = rotation_for(to, head_dim=64)
    moved = reposition(rows, to, rotation, 123)
    codec = block_type(live)
    layer = rotation.caches[0][0]
    for number in range(2):
        keys = block_type(F16).dequantize(rows.caches[0].k[number])
        turned = rotate(keys, layer, angles(layer, np.array([123])))
        np.testing.assert_array_equal(moved.caches[0].k[number], codec.quantize(hadamard(turned, 128)))
        source = rows.caches[0].v[number]
        assert source is not None
        values = hadamard(block_type(F16).dequantize(source), 64)
        np.testing.assert_array_equal(moved.caches[0].v[number], codec.quantize(values))


def test_a_stored_hadamard_is_undone() -> None:
    plain = random_rows(StateLayout((cache(2, F32, F32, 128),)), (9,))
    mixed = reposition(
        plain, StateLayout((cache(2, F32, F32, 128, k_hadamard=128, v_hadamard=64),)), rotation_for(plain.layout), 0
    )
    assert np.abs(decoded(mixed)[0] - decoded(plain)[0]).max() > 0.5
    moved = reposition(mixed, plain.layout, rotation_for(plain.layout), 50)
    np.testing.assert_allclose(
        decoded(moved), decoded(reposition(plain, plain.layout, rotation_for(plain.layout), 50)), atol=5e-6
    )
    within = reposition(mixed, mixed.layout, rotation_for(plain.layout), 50)
    np.testing.assert_allclose(
        decoded(reposition(within, plain.layout, rotation_for(plain.layout), 0)), decoded(moved), atol=5e-6
    )
    for ours, theirs in zip(within.caches[0].v, mixed.caches[0].v, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_only_the_type_changes_where_both_sides_have_the_same_hadamard() -> None:
    described = StateLayout((cache(2, Q8, Q8, 128, k_hadamard=128, v_hadamard=64),))
    rows = random_rows(described, (9,))
    wider = reposition(rows, with_hadamard_kept(described, F32), rotation_for(described), 0)
    np.testing.assert_array_equal(decoded(wider), decoded(rows))


def with_hadamard_kept(layout: StateLayout, type: GGMLType) -> StateLayout:
    plain = with_types(layout, type, type).caches
    blocks = [(c.k_hadamard, c.v_hadamard) for c in layout.caches]
    return StateLayout(tuple(replace(c, k_hadamard=k, v_hadamard=v) for c, (k, v) in zip(plain, blocks, strict=True)))


def test_q8_0_artifacts_move_too() -> None:
    rows = random_rows(LAYOUTS["Q8_0"], (9,))
    rotation = rotation_for(rows.layout)
    moved = reposition(rows, with_types(rows.layout, F16, Q8), rotation, 30)
    layer = rotation.caches[0][0]
    for old, new in zip(rows.caches[0].k, moved.caches[0].k, strict=True):
        wanted = rotate(block_type(Q8).dequantize(old), layer, angles(layer, np.array([30])))
        np.testing.assert_array_equal(new, block_type(F16).quantize(wanted))
    for ours, theirs in zip(moved.caches[0].v, rows.caches[0].v, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_every_cell_goes_to_its_own_place() -> None:
    layout = StateLayout((cache(2, F32, F32),))
    rows = random_rows(layout, (40,))
    new = np.cumsum(np.random.default_rng(3).integers(1, 50, 40)).astype(np.int64)
    moved = reposition(rows, layout, rotation_for(layout), [new])
    np.testing.assert_array_equal(moved.caches[0].pos, new)
    layer = rotation_for(layout).caches[0][0]
    keys = rows.caches[0].k[1].view(np.float32)
    np.testing.assert_allclose(
        moved.caches[0].k[1].view(np.float32), rotate(keys, layer, angles(layer, new - rows.caches[0].pos)), atol=1e-6
    )


@pytest.mark.parametrize("which", ["all but the first", "all but the last", "the last alone", "the first alone"])
def test_keys_are_turned_where_some_cells_move_and_others_stay(which: str) -> None:
    layout = StateLayout((cache(2, F32, F32),))
    rows = random_rows(layout, (6,), start=40)
    old = rows.caches[0].pos.astype(np.int64)
    distance = np.array([0, 1, 1, 1, 1, 1] if "first" in which else [1, 1, 1, 1, 1, 0])
    if "alone" in which:
        distance = 1 - distance
    distance *= 5000 if distance[-1] else -7
    new = old + distance
    moved = reposition(rows, layout, rotation_for(layout), [new])
    layer = rotation_for(layout).caches[0][0]
    np.testing.assert_array_equal(moved.caches[0].pos, new)
    for ours, stored in zip(moved.caches[0].k, rows.caches[0].k, strict=True):
        wanted = rotate(stored.view(np.float32), layer, angles(layer, distance))
        np.testing.assert_allclose(ours.view(np.float32), wanted, atol=1e-6)


def test_layers_with_different_rotations_keep_theirs() -> None:
    layout = StateLayout((cache(4, F32, F32),))
    rows = random_rows(layout, (6,))
    base = rotation_for(layout).caches[0][0]
    still = replace(base, n_rot=0, offset=0, frequencies=np.empty(0))
    other = replace(base, pairing=Pairing.ADJACENT, frequencies=base.frequencies * 0.5)
    rotation = ModelRotation(((base, still, other, replace(base)),))
    moved = reposition(rows, layout, rotation, 17)
    for number, layer in enumerate(rotation.caches[0]):
        keys = rows.caches[0].k[number].view(np.float32)
        wanted = rotate(keys, layer, angles(layer, np.array([17])))
        np.testing.assert_array_equal(moved.caches[0].k[number].view(np.float32), wanted)
    np.testing.assert_array_equal(moved.caches[0].k[1], rows.caches[0].k[1])


@pytest.mark.filterwarnings("error")
def test_a_bad_number_stays_in_its_own_layer_and_cell() -> None:
    layout = StateLayout((cache(2, F32, F32),))
    base = rotation_for(layout).caches[0][0]
    partial = replace(base, n_rot=16, frequencies=base.frequencies[:8])
    rows = random_rows(layout, (6,))
    bad = rows.caches[0].k[0].copy()
    bad.view(np.float32)[2, :] = np.inf
    spoilt = StateRows(layout, (replace(rows.caches[0], k=(bad, rows.caches[0].k[1])),))
    rotation = ModelRotation(((base, partial),))
    moved = reposition(spoilt, layout, rotation, 17).caches[0]
    clean = reposition(rows, layout, rotation, 17).caches[0]
    np.testing.assert_array_equal(moved.k[1], clean.k[1])
    np.testing.assert_array_equal(np.delete(moved.k[0], 2, axis=0), np.delete(clean.k[0], 2, axis=0))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["plain F16", "Q8_0", "sliding window", "M-RoPE", "no values", "three caches"]),
    st.sampled_from(list(Pairing)),
    st.integers(0, 20000),
    st.integers(-20000, 20000),
    st.integers(0, 9),
)
def test_moving_twice_is_like_moving_once(name: str, pairing: Pairing, a: int, b: int, seed: int) -> None:
    if a + b < 0:
        b = -a
    layout = with_types(LAYOUTS[name], F32, F32)
    rows = random_rows(layout, (5, 4, 3)[: len(layout.caches)], seed)
    rotation = rotation_for(layout, pairing=pairing)
    once = reposition(rows, layout, rotation, a + b)
    twice = reposition(reposition(rows, layout, rotation, a), layout, rotation, b)
    for x, y in zip(decoded(once), decoded(twice), strict=True):
        np.testing.assert_allclose(x, y, atol=5e-6)
    for p, q in zip(once.caches, twice.caches, strict=True):
        np.testing.assert_array_equal(p.pos, q.pos)
        if p.ext is not None:
            np.testing.assert_array_equal(p.ext, q.ext)
            np.testing.assert_array_equal(p.ext[:, 0], p.pos)


def test_chunking_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = LAYOUTS["sliding window"]
    rows = random_rows(layout, (50, 31))
    to = with_types(layout, F32, F32, block=64)
    new = [c.pos * 3 for c in rows.caches]
    whole = decoded(reposition(rows, to, rotation_for(to), new))
    monkeypatch.setattr("kvnotes_local.kv.row_jobs._CHUNK_ELEMENTS", 64 * 7)
    for x, y in zip(whole, decoded(reposition(rows, to, rotation_for(to), new)), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-6)


@pytest.mark.parametrize("n_threads", [2, 3, 64])
@pytest.mark.parametrize("name", ["Q8_0", "mixed types", "sliding window, all layers slide"])
def test_threads_do_not_show(name: str, n_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = LAYOUTS[name]
    rows = random_rows(layout, (50, 31)[: len(layout.caches)] if layout.caches[0].layers else (0, 31))
    new = [c.pos * 3 for c in rows.caches]
    one = reposition_into(rows, layout, rotation_for(layout), new)
    monkeypatch.setattr("kvnotes_local.kv.row_jobs._WORTH_A_THREAD", 1)
    many = reposition_into(rows, layout, rotation_for(layout), new, n_threads=n_threads)
    for x, y in zip(
        decoded(parse_state(one, layout)), decoded(parse_state(many, layout)), strict=True
    ):  # BLAS may round otherwise in products of other sizes
        np.testing.assert_allclose(x, y, rtol=2e-2, atol=2e-3)


def test_an_error_in_a_thread_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvnotes_local.kv.row_jobs._WORTH_A_THREAD", 1)
    rows = random_rows(LAYOUTS["Q8_0"], (50,))

    class Broken(Recorder):
        def quantize(self, type: GGMLType, values: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        reposition_into(rows, rows.layout, rotation_for(rows.layout), 5, Broken(), n_threads=2)


def test_the_source_is_left_alone() -> None:
    rows = random_rows(LAYOUTS["M-RoPE"], (9,))
    before = bytes(write_state(rows))
    moved = reposition(rows, rows.layout, rotation_for(rows.layout), 5)
    assert bytes(write_state(rows)) == before
    assert not any(np.shares_memory(a, b) for a, b in zip(moved.caches[0].k, rows.caches[0].k, strict=True))


def test_read_only_blobs_can_be_sources() -> None:
    rows = random_rows(LAYOUTS["plain F16"], (9,))
    parsed = parse_state(bytes(write_state(rows)), rows.layout)
    assert_same_rows(
        reposition(parsed, rows.layout, rotation_for(rows.layout), 5),
        reposition(rows, rows.layout, rotation_for(rows.layout), 5),
    )


def test_memory_beyond_the_result_stays_small() -> None:
    layout = StateLayout((cache(4, F16, F16, 1024),))
    rows = random_rows(layout, (3000,))
    rotation = rotation_for(layout, head_dim=128)
    rotation = ModelRotation((tuple(replace(y, arithmetic=AngleArithmetic(0.85)) for y in rotation.caches[0]),))
    tracemalloc.start()
    try:
        blob = reposition_into(rows, layout, rotation, 100)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(blob) > 40 << 20
    assert peak - len(blob) < 8 << 20


class Recorder:
    """A converter that notes what it was given and leaves the work to numpy."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, GGMLType]] = []

    def dequantize(self, type: GGMLType, rows: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        assert rows.flags.c_contiguous
        assert out.flags.c_contiguous
        assert rows.dtype == np.uint8
        assert rows.shape == (len(out), block_type(type).row_bytes(out.shape[1]))
        self.calls.append(("from", type))
        NUMPY.dequantize(type, rows, out)

    def quantize(self, type: GGMLType, values: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
        assert values.flags.c_contiguous
        assert out.flags.c_contiguous
        assert out.dtype == np.uint8
        assert out.shape == (len(values), block_type(type).row_bytes(values.shape[1]))
        self.calls.append(("to", type))
        NUMPY.quantize(type, values, out)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_converter_gets_contiguous_arrays_of_the_right_shape(name: str) -> None:
    rows = random_rows(LAYOUTS[name], (7, 5, 3)[: len(LAYOUTS[name].caches)])
    parsed = parse_state(write_state(rows), rows.layout)
    for to in (LAYOUTS[name], with_types(LAYOUTS[name], Q8, GGMLType.BF16)):
        recorder = Recorder()
        rotation = rotation_for(to)
        assert reposition_into(parsed, to, rotation, 2, recorder) == reposition_into(parsed, to, rotation, 2)
        assert recorder.calls


def test_positions_that_cannot_be_are_refused() -> None:
    layout = LAYOUTS["sliding window"]
    rows = random_rows(layout, (4, 3), start=3)
    rotation = rotation_for(layout)
    full, sliding = (c.pos.astype(np.int64) for c in rows.caches)
    bad: list[object] = [
        -5,
        2**31,
        [full],
        [full, sliding, sliding],
        [full, sliding[:-1]],
        [full, sliding[::-1]],
        [full * 0, sliding],
        [full - 100, sliding],
        [full + 2**31, sliding],
    ]
    for positions in bad:
        with pytest.raises(LayoutError):
            reposition(rows, layout, rotation, positions)  # type: ignore[arg-type]
        with pytest.raises(LayoutError):
            reposition_into(rows, layout, rotation, positions)  # type: ignore[arg-type]


def test_other_models_are_refused() -> None:
    rows = random_rows(LAYOUTS["plain F16"], (4,))
    rotation = rotation_for(rows.layout)
    for other in (
        StateLayout((cache(2, F16, F16),)),
        StateLayout((cache(3, F16, F16, 128),)),
        StateLayout((cache(3, F16, None),)),
        StateLayout((cache(3, F16, F16, has_ext=True),)),
        LAYOUTS["sliding window"],
    ):
        with pytest.raises(LayoutError, match="different models"):
            reposition(rows, other, rotation, 1)
    with pytest.raises(RotationError, match="measure the model again"):
        reposition(rows, rows.layout, rotation_for(StateLayout((cache(2, F16, F16),))), 1)
    with pytest.raises(LayoutError, match="Hadamard block of 128"):
        reposition(rows, StateLayout((cache(3, F16, F16, k_hadamard=128),)), rotation, 1)


def test_cells_of_an_image_cannot_be_moved() -> None:
    rows = random_rows(LAYOUTS["M-RoPE"], (4,))
    data = rows.caches[0]
    assert data.ext is not None
    ext = data.ext.copy()
    ext[2, 1] += 1
    picture = StateRows(rows.layout, (replace(data, ext=ext),))
    with pytest.raises(RotationError, match="image"):
        reposition(picture, rows.layout, rotation_for(rows.layout), 1)
    assert_same_rows(reposition(picture, rows.layout, rotation_for(rows.layout), 0), picture)


def test_another_number_of_streams_is_no_obstacle() -> None:
    rows = random_rows(LAYOUTS["four streams"], (4,), seed=5)
    rows = StateRows(rows.layout, (replace(rows.caches[0], stream=3),))
    one = StateLayout((cache(2, F16, F16),))
    assert reposition(rows, one, rotation_for(one), 0).caches[0].stream == 0
    assert reposition(rows, rows.layout, rotation_for(one), 0).caches[0].stream == 3
