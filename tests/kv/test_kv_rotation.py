"""Turning keys against ggml's RoPE, and rotations as JSON."""

from __future__ import annotations

from dataclasses import replace

import ggml_oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_samples import F16, cache, rotation_for

from kvnotes_local.errors import RotationError
from kvnotes_local.kv.angles import AngleArithmetic, theta_scale
from kvnotes_local.kv.layout import StateLayout
from kvnotes_local.kv.rotation import LayerRotation, Pairing, angles, check_rotation
from tests.kv_oracles import rotate

MODES = {Pairing.ADJACENT: 0, Pairing.HALVES: 2}


def layer(pairing: Pairing, n_head: int = 3, head_dim: int = 64, n_rot: int = 64, offset: int = 0) -> LayerRotation:
    return LayerRotation(
        n_head,
        head_dim,
        offset,
        n_rot,
        pairing,
        10000.0 ** -(np.arange(n_rot // 2) * 2 / n_rot),
        AngleArithmetic(theta_scale(10000.0, n_rot)),
    )


@pytest.mark.parametrize("pairing", Pairing)
@pytest.mark.parametrize(("head_dim", "n_rot"), [(64, 64), (128, 128), (80, 20), (128, 32), (256, 256), (96, 6)])
@pytest.mark.parametrize("n_head", [1, 3])
def test_turned_keys_are_those_of_ggml(pairing: Pairing, head_dim: int, n_rot: int, n_head: int) -> None:
    rotation = layer(pairing, n_head, head_dim, n_rot)
    keys = np.random.default_rng(0).standard_normal((50, n_head, head_dim)).astype(np.float32)
    positions = np.random.default_rng(1).integers(0, 60000, 50).astype(np.int32)
    wanted = ggml_oracle.rope(keys, positions, n_rot=n_rot, mode=MODES[pairing], freq_base=10000.0)
    flat = keys.reshape(50, -1)
    turned = rotate(flat, rotation, angles(rotation, positions))
    np.testing.assert_allclose(turned, wanted.reshape(50, -1), atol=2e-6)
    assert not np.shares_memory(turned, flat)


@pytest.mark.parametrize("pairing", Pairing)
def test_the_rotating_part_may_lie_at_the_end_of_a_head(pairing: Pairing) -> None:
    """As in models with a latent part in front (MLA)."""
    rotation = layer(pairing, 2, 96, 32, 64)
    keys = np.random.default_rng(0).standard_normal((9, 2, 96)).astype(np.float32)
    positions = np.arange(9, dtype=np.int32) * 7
    wanted = keys.copy()
    part = np.ascontiguousarray(keys[..., 64:])
    wanted[..., 64:] = ggml_oracle.rope(part, positions, n_rot=32, mode=MODES[pairing], freq_base=10000.0)
    turned = rotate(keys.reshape(9, -1), rotation, angles(rotation, positions)).reshape(keys.shape)
    np.testing.assert_allclose(turned, wanted, atol=2e-6)
    np.testing.assert_array_equal(turned[..., :64], keys[..., :64])


@pytest.mark.parametrize("pairing", Pairing)
def test_one_row_of_angles_turns_all_cells_alike(pairing: Pairing) -> None:
    rotation = layer(pairing, head_dim=96)
    keys = np.random.default_rng(0).standard_normal((9, 288)).astype(np.float32)
    one = angles(rotation, np.array([41]))
    np.testing.assert_array_equal(rotate(keys, rotation, one), rotate(keys, rotation, np.repeat(one, 9, axis=0)))


def test_a_layer_without_rotation_stays() -> None:
    still = LayerRotation(2, 16, 0, 0, Pairing.HALVES, np.empty(0))
    keys = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    np.testing.assert_array_equal(rotate(keys, still, angles(still, np.arange(4))), keys)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(Pairing)),
    st.integers(-5000, 5000),
    st.integers(-5000, 5000),
    st.integers(0, 3),
    st.integers(1, 16),
    st.integers(0, 99),
)
def test_turning_back_and_on_is_like_turning_once(
    pairing: Pairing, a: int, b: int, offset: int, half: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rotation = LayerRotation(2, 2 * (half + offset + 1), 2 * offset, 2 * half, pairing, rng.uniform(0, 1, half))
    keys = rng.standard_normal((5, rotation.n_embd)).astype(np.float32)
    once = rotate(keys, rotation, angles(rotation, np.array([a + b])))
    twice = rotate(rotate(keys, rotation, angles(rotation, np.array([a]))), rotation, angles(rotation, np.array([b])))
    np.testing.assert_allclose(twice, once, atol=3e-6)
    np.testing.assert_allclose(np.linalg.norm(once, axis=1), np.linalg.norm(keys, axis=1), rtol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"n_rot": 63},
        {"n_rot": 66},
        {"offset": 2},
        {"offset": -2},
        {"n_head": -1},
        {"frequencies": np.ones(31)},
        {"frequencies": np.full(32, np.nan)},
        {"head_dim": 65, "offset": 1},
    ],
)
def test_contradictory_rotations_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(RotationError):
        replace(layer(Pairing.ADJACENT), **change)  # type: ignore[arg-type]


def test_a_rotation_of_another_model_is_refused() -> None:
    layout = StateLayout((cache(2, F16, F16, 64),))
    check_rotation(rotation_for(layout), layout)
    with pytest.raises(RotationError, match="measure the model again"):
        check_rotation(rotation_for(layout), StateLayout((cache(3, F16, F16, 64),)))
