"""Angles in ggml's float32 arithmetic, read back from what ggml's RoPE does to unit vectors."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fractions import Fraction

import ggml_oracle
import numpy as np
import pytest
from numpy.typing import NDArray

from kvnotes_local.errors import RotationError
from kvnotes_local.kv.angles import AngleArithmetic, Fusion, float32_angles, theta_scale, yarn_ramp_mix
from kvnotes_local.kv.rotation import LayerRotation, Pairing, angles

NORMAL, NEOX, MROPE, IMROPE = 0, 2, 8, 40
POSITIONS = np.concatenate(([0, 1, 2, 3], np.random.default_rng(0).integers(4, 131072, 150))).astype(np.int32)


@dataclass(frozen=True)
class Case:
    n_rot: int
    freq_base: float
    mode: int = NEOX
    factors: bool = False
    freq_scale: float = 1.0
    ext_factor: float = 0.0
    n_ctx_orig: int = 4096
    sections: tuple[int, int, int, int] | None = None
    standing: tuple[int, ...] = ()

    @property
    def freq_factors(self) -> NDArray[np.float32] | None:
        return np.random.default_rng(1).uniform(1, 8, self.n_rot // 2).astype(np.float32) if self.factors else None

    def arithmetic(self, fusion: Fusion = Fusion.NONE) -> AngleArithmetic:
        turning = np.ones(self.n_rot // 2, np.bool_)
        turning[list(self.standing)] = False
        return AngleArithmetic(
            theta_scale(self.freq_base, self.n_rot),
            self.freq_scale,
            self.freq_factors,
            yarn_ramp_mix(self.n_rot, self.n_ctx_orig, self.freq_base, 32.0, 1.0, self.ext_factor),
            turning if self.standing else None,
            fusion,
        )

    def ggml(self, keys: NDArray[np.float32], positions: NDArray[np.int32]) -> NDArray[np.float32]:
        return ggml_oracle.rope(
            keys,
            positions,
            n_rot=self.n_rot,
            mode=self.mode,
            freq_base=self.freq_base,
            freq_factors=self.freq_factors,
            freq_scale=self.freq_scale,
            ext_factor=self.ext_factor,
            n_ctx_orig=self.n_ctx_orig,
            sections=self.sections,
        )

    def ggml_cosines_and_sines(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What (1, 0) of every pair becomes."""
        keys = np.zeros((len(POSITIONS), 1, self.n_rot), np.float32)
        first = slice(0, None, 2) if self.mode == NORMAL else slice(0, self.n_rot // 2)
        second = slice(1, None, 2) if self.mode == NORMAL else slice(self.n_rot // 2, None)
        keys[..., first] = 1
        turned = self.ggml(keys, POSITIONS)[:, 0]
        return turned[:, first], turned[:, second]


CASES = {
    "plain": Case(64, 1e4, NORMAL),
    "halves, large base": Case(128, 1e6),
    "odd base": Case(80, 500000.0),
    "linear scaling": Case(64, 1e4, freq_scale=0.25),
    "frequency factors": Case(64, 5e5, factors=True),
    "YaRN": Case(64, 1e4, NORMAL, freq_scale=0.25, ext_factor=1.0),
    "YaRN, long": Case(128, 1e6, freq_scale=0.25, ext_factor=1.0, n_ctx_orig=32768),
    "YaRN with factors": Case(128, 1e6, factors=True, freq_scale=0.125, ext_factor=1.0),
    "M-RoPE": Case(128, 1e6, MROPE, sections=(16, 24, 24, 0)),
    "M-RoPE, four sections": Case(64, 1e6, MROPE, sections=(8, 8, 8, 8), standing=tuple(range(24, 32))),
    "interleaved M-RoPE": Case(128, 1e6, IMROPE, sections=(24, 20, 20, 0), standing=(61, 62)),
}


def exact(angle: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    cosf, sinf = ggml_oracle.libm()
    flat = [float(a) for a in angle.ravel()]
    return (
        np.array([cosf(a) for a in flat], np.float32).reshape(angle.shape),
        np.array([sinf(a) for a in flat], np.float32).reshape(angle.shape),
    )


@pytest.mark.parametrize("name", CASES)
def test_angles_are_those_of_ggml_to_the_last_bit(name: str) -> None:
    case = CASES[name]
    cosines, sines = case.ggml_cosines_and_sines()
    magnitude = cosines[0, 0]  # YaRN also scales; at position 0 nothing else shows
    matching = []
    # Which product the compiler fuses is its own choice, but it must be one of the three.
    for fusion in Fusion if case.ext_factor else [Fusion.NONE]:
        angle = float32_angles(case.arithmetic(fusion), POSITIONS, case.n_rot // 2)
        if sys.platform == "linux":
            cosine, sine = exact(angle)
            same = np.array_equal(cosine * magnitude, cosines) and np.array_equal(sine * magnitude, sines)
        else:
            found = np.arctan2(sines.astype(np.float64), cosines)
            same = bool((np.abs(np.angle(np.exp(1j * (found - angle.astype(np.float64))))) < 5e-7).all())
        matching.append(same)
    assert any(matching)


def test_the_ideal_angle_is_measurably_different_at_large_positions() -> None:
    """So the test above can fail, and the arithmetic is worth having."""
    case = CASES["plain"]
    ideal = np.multiply.outer(POSITIONS.astype(np.float64), 1e4 ** -(np.arange(32) / 32))
    chained = float32_angles(case.arithmetic(), POSITIONS, 32)
    assert 1e-3 < np.abs(ideal - chained).max() < 0.1


def test_a_layer_with_arithmetic_uses_it_and_one_without_is_ideal() -> None:
    case = CASES["plain"]
    frequencies = 1e4 ** -(np.arange(32) / 32)
    ideal = LayerRotation(1, 64, 0, 64, Pairing.ADJACENT, frequencies)
    rounded = LayerRotation(1, 64, 0, 64, Pairing.ADJACENT, frequencies, case.arithmetic())
    np.testing.assert_array_equal(angles(ideal, POSITIONS), np.multiply.outer(POSITIONS.astype(float), frequencies))
    np.testing.assert_array_equal(angles(rounded, POSITIONS), float32_angles(case.arithmetic(), POSITIONS, 32))
    assert angles(rounded, POSITIONS).dtype == np.float64
    assert angles(rounded, POSITIONS[:0]).shape == (0, 32)


@pytest.mark.skipif(sys.platform != "linux", reason="powf is taken from glibc")
def test_the_scale_from_pair_to_pair_is_the_one_powf_gives() -> None:
    import ctypes

    library = ctypes.CDLL("libm.so.6")
    library.powf.restype, library.powf.argtypes = ctypes.c_float, [ctypes.c_float, ctypes.c_float]
    for base in (1e4, 5e5, 1e6, 1e7, 8e6, 150000.0, 10000.5, 1e5, 3e5, 2.5e6):
        for n_rot in (16, 20, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256):
            exponent = np.float32(-2.0) / np.float32(n_rot)
            assert theta_scale(base, n_rot) == library.powf(base, float(exponent)), (base, n_rot)


def test_fused_products_are_rounded_once() -> None:
    """Against exact rational arithmetic, with sums that lie a hair above a float32 midpoint.

    538,733 · 8,163,685 is 2**42 + 1: added to a number whose last place is worth twice as much, it makes a sum that
    float64 takes for a tie.
    """
    position, mix = 538_733, np.float32(8_163_685 / 2**23)
    upward = 0
    for scale in np.linspace(6.1e8, 1.1e9, 40).astype(np.float32):
        arithmetic = AngleArithmetic(1.0, float(scale), None, np.array([mix]), None, Fusion.EXTRAPOLATED)
        got = float32_angles(arithmetic, np.array([position]), 1)[0, 0]
        rest = np.float32(position) * scale * (np.float32(1) - mix)
        wanted = Fraction(position) * Fraction(float(mix)) + Fraction(float(rest))
        for other in (np.nextafter(got, np.float32(np.inf)), np.nextafter(got, np.float32(0))):
            assert abs(Fraction(float(got)) - wanted) < abs(Fraction(float(other)) - wanted)
        upward += np.float32(float(rest) + float(position) * float(mix)) != got
    assert upward, "no case in which rounding twice would have gone wrong"


@pytest.mark.parametrize(
    "broken",
    [
        AngleArithmetic(0.0),
        AngleArithmetic(float("nan")),
        AngleArithmetic(0.5, freq_scale=-1.0),
        AngleArithmetic(0.5, freq_factors=np.ones(31, np.float32)),
        AngleArithmetic(0.5, freq_factors=np.zeros(32, np.float32)),
        AngleArithmetic(0.5, ramp_mix=np.full(32, np.nan, np.float32)),
        AngleArithmetic(0.5, turning=np.ones(33, np.bool_)),
    ],
)
def test_arithmetic_that_makes_no_sense_is_refused(broken: AngleArithmetic) -> None:
    with pytest.raises(RotationError):
        LayerRotation(1, 64, 0, 64, Pairing.ADJACENT, np.ones(32), broken)
