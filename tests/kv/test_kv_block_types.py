"""Block types against ggml's own quantizers, bit by bit."""

from __future__ import annotations

import ggml_oracle
import numpy as np
import pytest
from numpy.typing import NDArray

from kvnotes_local.errors import LayoutError
from kvnotes_local.kv.block_types import block_type, tensor_row_bytes
from kvnotes_local.kv.layout import GGMLType, TensorLayout

QUANTIZED = [t for t in GGMLType if t not in (GGMLType.F32, GGMLType.F16, GGMLType.BF16)]
N = 128


def samples() -> NDArray[np.float32]:
    """Rows of 128: many scales, ties, constants, zeros, one outlier, powers of two, tiny and huge numbers."""
    rng = np.random.default_rng(7)
    normal = rng.standard_normal((6000, N)) * 10.0 ** rng.uniform(-6, 3, (6000, 1))
    ties = rng.integers(-255, 256, (2000, N)) / 2 * 127 / 127.5
    halves = np.round(rng.standard_normal((2000, N)) * 64) / 8
    halves[:, ::32] = 127
    constant = np.repeat(rng.standard_normal((200, 1)), N, axis=1)
    outlier = rng.standard_normal((500, N)) * 0.01
    outlier[np.arange(500), rng.integers(0, N, 500)] = rng.choice([-60.0, 60.0], 500)
    powers = 2.0 ** rng.integers(-30, 15, (500, N)) * rng.choice([-1, 1], (500, N))
    extremes = [np.zeros((1, N)), np.full((1, N), 65504.0), rng.standard_normal((500, N)) * 1e5]
    tiny = rng.standard_normal((500, N)) * 10.0 ** rng.uniform(-45, -30, (500, 1))
    faint = rng.standard_normal((500, N)) * 10.0 ** rng.uniform(-17, -14, (500, 1))
    parts = [faint, normal, ties, halves, constant, outlier, powers, *extremes, tiny]
    return np.concatenate(parts).astype(np.float32)


def assert_same_bytes(
    type: GGMLType, values: NDArray[np.float32], ours: NDArray[np.uint8], theirs: NDArray[np.uint8]
) -> None:
    size = block_type(type).type_size
    a, b = ours.reshape(-1, size), theirs.reshape(-1, size)
    wrong = np.count_nonzero(a != b, axis=1)
    if wrong.any():
        worst = int(np.argmax(wrong))
        block = values.reshape(-1, block_type(type).block_size)[worst]
        pytest.fail(
            f"{type.name}: {np.count_nonzero(wrong)} of {len(wrong)} blocks differ; worst is block {worst}:\n"
            f"values {block.tolist()}\nours   {a[worst].tolist()}\nggml's {b[worst].tolist()}"
        )


@pytest.mark.parametrize("type", list(GGMLType), ids=lambda t: t.name)
def test_quantizing_gives_the_bytes_of_ggml(type: GGMLType) -> None:
    values = samples()
    ours, theirs = block_type(type).quantize(values), ggml_oracle.quantize(type, values)
    if type is GGMLType.IQ4_NL:
        # For blocks below its threshold ggml leaves the levels uninitialised; the scale is 0, so they mean nothing.
        vanishing = np.abs(values).reshape(-1, 32).max(axis=1) < np.float32(1e-15)
        theirs.reshape(-1, 18)[vanishing, 2:] = 0
    assert_same_bytes(type, values, ours, theirs)


@pytest.mark.parametrize("type", list(GGMLType), ids=lambda t: t.name)
def test_dequantizing_gives_the_numbers_of_ggml_for_any_bytes(type: GGMLType) -> None:
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 256, (4000, block_type(type).row_bytes(N)), dtype=np.uint8)
    ours, theirs = block_type(type).dequantize(rows), ggml_oracle.dequantize(type, rows)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    number = ~np.isnan(ours)
    np.testing.assert_array_equal(ours[number].view(np.uint32), theirs[number].view(np.uint32))


@pytest.mark.parametrize(
    "type",
    [
        GGMLType.F32,
        GGMLType.F16,
        GGMLType.BF16,
        GGMLType.Q4_0,
        GGMLType.Q4_1,
        GGMLType.Q5_0,
        GGMLType.Q5_1,
        GGMLType.IQ4_NL,
    ],
    ids=lambda t: t.name,
)
def test_quantizing_gives_what_ggml_stores_into_a_cache(type: GGMLType) -> None:
    rng = np.random.default_rng(5)
    values = (rng.standard_normal((500, N)) * 10.0 ** rng.uniform(-3, 2, (500, 1))).astype(np.float32)
    assert_same_bytes(type, values, block_type(type).quantize(values), ggml_oracle.store_into_cache(type, values))


def test_q8_0_differs_from_the_simd_quantizer_by_one_level_at_most() -> None:
    """The SIMD version multiplies by 127 / maximum and rounds halves to even; scales are the same."""
    values = np.random.default_rng(5).standard_normal((2000, N)).astype(np.float32)
    ours = block_type(GGMLType.Q8_0).quantize(values).reshape(-1, 34)
    stored = ggml_oracle.store_into_cache(GGMLType.Q8_0, values).reshape(-1, 34)
    np.testing.assert_array_equal(ours[:, :2], stored[:, :2])
    steps = np.abs(ours[:, 2:].view(np.int8).astype(int) - stored[:, 2:].view(np.int8))
    assert steps.max() <= 1
    assert np.count_nonzero(steps) < 0.001 * steps.size


@pytest.mark.parametrize("type", list(GGMLType), ids=lambda t: t.name)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stay_visible_and_do_not_spread_to_other_blocks(type: GGMLType, bad: float) -> None:
    codec = block_type(type)
    values = np.random.default_rng(1).standard_normal((4, N)).astype(np.float32)
    clean = codec.quantize(values)
    values[2, 40] = bad
    rows = codec.quantize(values)
    assert codec.all_finite(clean)
    assert not codec.all_finite(rows)
    spoilt = codec.dequantize(rows)
    assert not np.isfinite(spoilt[2, 40])
    block = slice(32, 64) if codec.block_size == 32 else slice(40, 41)
    rest = np.ones(N, bool)
    rest[block] = False
    np.testing.assert_array_equal(codec.dequantize(clean)[:, rest], spoilt[:, rest])


@pytest.mark.parametrize("type", list(GGMLType), ids=lambda t: t.name)
def test_finite_is_said_of_exactly_the_bytes_that_decode_to_finite_numbers(type: GGMLType) -> None:
    codec = block_type(type)
    rng = np.random.default_rng(8)
    rows = rng.integers(0, 256, (600, codec.type_size), dtype=np.uint8)
    for byte in range(min(4, codec.type_size)):
        rows[100 * byte : 100 * byte + 100, byte] = 0x7C
    for byte in range(1, min(4, codec.type_size), 2):
        rows[400 + 50 * byte : 450 + 50 * byte, byte] = 0xFF
    said = [codec.all_finite(row) for row in rows]
    assert said == np.isfinite(codec.dequantize(rows)).all(axis=1).tolist()
    assert len(set(said)) == 2


@pytest.mark.parametrize("type", QUANTIZED, ids=lambda t: t.name)
def test_a_row_that_is_no_whole_number_of_blocks_is_refused(type: GGMLType) -> None:
    codec = block_type(type)
    with pytest.raises(LayoutError, match=r"48 elements.*multiple of 32"):
        codec.row_bytes(48)
    with pytest.raises(LayoutError, match="48"):
        codec.quantize(np.zeros((2, 48), np.float32))
    with pytest.raises(LayoutError, match="no whole row"):
        codec.dequantize(np.zeros((2, codec.type_size + 1), np.uint8))
    with pytest.raises(LayoutError):
        tensor_row_bytes(TensorLayout(type, 16))


@pytest.mark.parametrize("type", list(GGMLType), ids=lambda t: t.name)
def test_leading_axes_strides_and_empty_arrays_do_not_matter(type: GGMLType) -> None:
    codec = block_type(type)
    values = np.random.default_rng(2).standard_normal((3, 5, N)).astype(np.float32)
    rows = codec.quantize(values)
    assert rows.shape == (3, 5, codec.row_bytes(N))
    np.testing.assert_array_equal(codec.quantize(values[:, ::2]), rows[:, ::2])
    np.testing.assert_array_equal(codec.dequantize(rows[::2]), codec.dequantize(rows)[::2])
    assert codec.quantize(values[:0]).shape == (0, 5, codec.row_bytes(N))
    assert codec.dequantize(rows[:0]).shape == (0, 5, N)


def test_every_type_is_registered_with_the_sizes_of_ggml() -> None:
    import ctypes

    for type in GGMLType:
        codec = block_type(type)
        size = ggml_oracle.call(ggml_oracle.base(), "ggml_type_size", ctypes.c_size_t, ctypes.c_int(type))
        block = ggml_oracle.call(ggml_oracle.base(), "ggml_blck_size", ctypes.c_int64, ctypes.c_int(type))
        assert (codec.type, codec.type_size, codec.block_size) == (type, size, block)
