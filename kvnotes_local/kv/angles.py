"""The float32 arithmetic by which ggml's CPU backend gets from a position to rotation angles.

Mirrors ggml/src/ggml-cpu/ops.cpp (``ggml_rope_cache_init``, ``ggml_mrope_cache_init``, ``rope_yarn``,
``rope_yarn_ramp``) and ggml/src/ggml.c (``ggml_rope_yarn_corr_dims``). At position 16,000 a float32 angle is rounded to
about 0.001 radians, so keys in a cache differ from an ideal rotation by that much; reproducing the rounding removes the
difference.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.errors import RotationError


class Fusion(StrEnum):
    """Which product of YaRN's ``interp * (1 - mix) + extrap * mix`` goes unrounded into a fused multiply-add."""

    NONE = "none"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"


@dataclass(frozen=True, eq=False)
class AngleArithmetic:
    """What a layer's angles are computed from; numbers are meant as float32.

    ``theta_scale``: factor from one pair to the next, ``powf(freq_base, -2 / n_rot)``.
    ``freq_scale``: linear scaling, 1 / factor. ``freq_factors``: float32 (n_rot/2,), divisors, or None.
    ``ramp_mix``: float32 (n_rot/2,), share of the unscaled angle in YaRN, already times its ext_factor; None without.
    ``turning``: bool (n_rot/2,), False for pairs whose position is always 0: for text, M-RoPE's fourth section. The
    other sections all have the token's position, so that they form one chain. None: all pairs turn.
    """

    theta_scale: float
    freq_scale: float = 1.0
    freq_factors: NDArray[np.float32] | None = None
    ramp_mix: NDArray[np.float32] | None = None
    turning: NDArray[np.bool_] | None = None
    fusion: Fusion = Fusion.INTERPOLATED

    @property
    def key(self) -> Hashable:
        """Equal for equal arithmetic."""
        arrays = self.freq_factors, self.ramp_mix, self.turning
        numbers = float(np.float32(self.theta_scale)), float(np.float32(self.freq_scale))
        return numbers, self.fusion, tuple(None if one is None else tuple(one.tolist()) for one in arrays)

    def check(self, n_pairs: int) -> None:
        """Raise RotationError unless the arithmetic is for ``n_pairs`` pairs and its numbers are sensible."""
        for name in ("freq_factors", "ramp_mix", "turning"):
            array = getattr(self, name)
            if array is not None and array.shape != (n_pairs,):
                raise RotationError(f"{name} has shape {array.shape} where the layer has {n_pairs} pairs")
        numbers = [np.float32(self.theta_scale), np.float32(self.freq_scale)]
        if not np.isfinite(numbers).all() or self.theta_scale <= 0 or self.freq_scale <= 0:
            raise RotationError(f"theta_scale {self.theta_scale} and freq_scale {self.freq_scale} must be positive")
        if self.freq_factors is not None and not (np.isfinite(self.freq_factors) & (self.freq_factors != 0)).all():
            raise RotationError("a frequency factor is zero, NaN or infinite")
        if self.ramp_mix is not None and not np.isfinite(self.ramp_mix).all():
            raise RotationError("a YaRN mix is NaN or infinite")


def float32_angles(arithmetic: AngleArithmetic, positions: NDArray[np.integer], n_pairs: int) -> NDArray[np.float32]:
    """ggml's angle of every pair at every position: float32 (n, n_pairs), in radians."""
    chain = np.empty((n_pairs, len(positions)), np.float32)
    chain[:1] = positions
    chain[1:] = np.float32(arithmetic.theta_scale)
    # One after the other: each product is rounded before the next, as in ggml's loop.
    theta = np.multiply.accumulate(chain, axis=0, out=chain)
    if arithmetic.freq_factors is not None:
        theta /= arithmetic.freq_factors.astype(np.float32)[:, None]
    interpolated = theta * np.float32(arithmetic.freq_scale)
    if arithmetic.ramp_mix is None:
        theta = interpolated
    else:
        mix = np.broadcast_to(arithmetic.ramp_mix.astype(np.float32)[:, None], theta.shape)
        rest = np.float32(1) - mix
        if arithmetic.fusion is Fusion.EXTRAPOLATED:
            theta = _fused_multiply_add(theta, mix, interpolated * rest)
        elif arithmetic.fusion is Fusion.INTERPOLATED:
            theta = _fused_multiply_add(interpolated, rest, theta * mix)
        else:
            theta = interpolated * rest + theta * mix
    if arithmetic.turning is not None:
        theta[~arithmetic.turning] = 0
    return np.ascontiguousarray(theta.T)


def _fused_multiply_add(a: NDArray[np.float32], b: NDArray[np.float32], c: NDArray[np.float32]) -> NDArray[np.float32]:
    """``a * b + c`` with a single rounding to float32."""
    product = a.astype(np.float64) * b  # exact: 24 + 24 bits
    addend = c.astype(np.float64)
    total = product + addend
    # Rounding twice goes wrong when the float64 sum lands on a float32 midpoint; so make an inexact sum odd first.
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    even = (total.view(np.uint64) & 1) == 0
    toward = np.nextafter(total, np.copysign(np.inf, lost))
    return np.where((lost != 0) & even, toward, total).astype(np.float32)


def theta_scale(freq_base: float, n_rot: int) -> float:
    """``powf(freq_base, -2 / n_rot)``, correctly rounded to float32."""
    return float(np.float32(np.float64(np.float32(freq_base)) ** np.float64(np.float32(-2.0) / np.float32(n_rot))))


def yarn_ramp_mix(
    n_rot: int, n_ctx_orig: int, freq_base: float, beta_fast: float, beta_slow: float, ext_factor: float
) -> NDArray[np.float32] | None:
    """Share of the unscaled angle in YaRN for every pair: float32 (n_rot/2,), or None when ext_factor is 0."""
    if ext_factor == 0:
        return None

    def corrected(n_turns: float) -> float:
        return n_rot * math.log(n_ctx_orig / (n_turns * 2 * math.pi)) / (2 * math.log(freq_base))

    low = np.float32(max(0, math.floor(corrected(beta_fast))))
    high = np.float32(min(n_rot - 1, math.ceil(corrected(beta_slow))))
    pairs = np.arange(n_rot // 2, dtype=np.float32)
    ramp = (pairs - low) / np.maximum(np.float32(0.001), high - low)
    mix: NDArray[np.float32] = (np.float32(1) - np.clip(ramp, np.float32(0), np.float32(1))) * np.float32(ext_factor)
    return mix
