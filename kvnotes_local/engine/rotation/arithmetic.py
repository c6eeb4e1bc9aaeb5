"""Find out which float32 arithmetic produced the measured angles of a layer.

An ideal angle, position times frequency, differs from the one in a cache by the rounding of llama.cpp's float32 chain:
some 0.001 radians at position 30,000. The chain's parameters follow from the metadata or, within a few candidates, from
the angles themselves. A wrong guess does no harm: only what reproduces the measured angles better is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.engine.rotation.fit import LayerFit
from kvnotes_local.kv.angles import AngleArithmetic, Fusion, float32_angles, theta_scale, yarn_ramp_mix

REPRODUCED = 1e-6
"""Radians, see ``angle_error``: an arithmetic this close is the one that was used."""

_STILL = 1e-9  # a pair that does not turn is the same bit by bit
_NOISE = 1e-7  # of a measured angle


@dataclass(frozen=True)
class Yarn:
    """Parameters of YaRN's ramp; see ``yarn_ramp_mix``."""

    n_ctx_orig: int
    beta_fast: float
    beta_slow: float
    ext_factor: float


@dataclass(frozen=True)
class RopeHints:
    """What the metadata and the context say about a model's angles; any of it may hold for some layers only.

    ``bases``: frequency bases. ``scales``: linear scalings, 1 / factor. ``yarns``: ramps.
    """

    bases: tuple[float, ...]
    scales: tuple[float, ...]
    yarns: tuple[Yarn, ...]


def find_arithmetic(
    positions: NDArray[np.int64], fit: LayerFit, hints: RopeHints, known: AngleArithmetic | None = None
) -> AngleArithmetic | None:
    """The arithmetic that reproduces the angles of ``fit`` best; None where none beats the ideal angles.

    ``known``: the arithmetic of another layer, which is tried first.
    """
    if not fit.rotation.n_rot:
        return None
    best, least = None, angle_error(fit, np.multiply.outer(positions.astype(np.float64), fit.rotation.frequencies))
    for group in _candidates(positions, fit, hints, known):
        for candidate in group:
            error = angle_error(fit, float32_angles(candidate, positions, fit.angles.shape[1]).astype(np.float64))
            if error < least:
                best, least = candidate, error
        if least < REPRODUCED:
            break
    return best


def angle_error(fit: LayerFit, angles: NDArray[np.float64]) -> float:
    """Root mean square distance in radians of ``angles`` (n_positions, n_rot/2) from the measured ones, at the worst
    position, weighted by the energy of the pairs: to first order the relative error of a key row that is moved.
    """
    if not fit.energy.size:
        return 0.0
    square = (angles - fit.angles) ** 2 @ fit.energy / fit.energy.sum()
    return float(np.sqrt(square.max()))


def ideal_frequencies(arithmetic: AngleArithmetic, n_pairs: int) -> NDArray[np.float64]:
    """Radians per position without any rounding but that of the parameters: float64 (n_pairs,)."""
    theta = np.float64(np.float32(arithmetic.theta_scale)) ** np.arange(n_pairs)
    if arithmetic.freq_factors is not None:
        theta /= arithmetic.freq_factors.astype(np.float64)
    interpolated = theta * np.float64(np.float32(arithmetic.freq_scale))
    if arithmetic.ramp_mix is not None:
        mix = arithmetic.ramp_mix.astype(np.float64)
        interpolated = interpolated * (1 - mix) + theta * mix
    if arithmetic.turning is not None:
        interpolated[~arithmetic.turning] = 0
    return np.asarray(interpolated)


def _candidates(
    positions: NDArray[np.int64], fit: LayerFit, hints: RopeHints, known: AngleArithmetic | None
) -> Iterator[list[AngleArithmetic]]:
    """Groups of alternatives of which the best is wanted, likely groups first."""
    n_pairs = fit.angles.shape[1]
    if known is not None and all(a is None or len(a) == n_pairs for a in (known.freq_factors, known.ramp_mix)):
        yield [known]
    silent = fit.energy < 1e-9 * fit.energy.max()
    moving = (np.abs(fit.angles).max(axis=0) > _STILL) | silent
    turning = None if moving.all() else moving
    bases = dict.fromkeys((theta_scale(base, 2 * n_pairs), base) for base in hints.bases)
    chains = [(scale, base) for scale, base in bases] + [(scale, None) for scale in _measured_scale(fit, moving)]
    first = float(np.float32(fit.rotation.frequencies[0])) if moving[0] else 1.0
    freq_scales = dict.fromkeys((*hints.scales, 1.0, first))
    for chain, base in chains:
        for step in _neighbours(chain):
            for freq_scale in freq_scales:
                yield [AngleArithmetic(step, freq_scale, turning=turning)]
                for yarn in hints.yarns if base is not None else ():
                    mix = yarn_ramp_mix(
                        2 * n_pairs, yarn.n_ctx_orig, base or 0.0, yarn.beta_fast, yarn.beta_slow, yarn.ext_factor
                    )
                    yield [AngleArithmetic(step, freq_scale, None, mix, turning, fusion) for fusion in Fusion]
    for chain, base in chains:
        if base is not None:
            for freq_scale in dict.fromkeys((*hints.scales, 1.0)):
                yield [_with_factors(positions, fit, AngleArithmetic(chain, freq_scale, turning=turning))]


def _measured_scale(fit: LayerFit, moving: NDArray[np.bool_]) -> list[float]:
    """The chain's factor as the measured frequencies give it, provided that they are a geometric series."""
    index = np.flatnonzero(moving)
    if len(index) < 3 or index[0] != 0:
        return []
    logs = np.log(np.maximum(fit.rotation.frequencies[index], 1e-300) / fit.rotation.frequencies[0])
    slope = float(np.sum(logs * index) / np.sum(index * index))
    return [float(np.float32(np.exp(slope)))] if np.abs(logs - slope * index).max() < 1e-4 else []


def _neighbours(value: float) -> tuple[float, float, float]:
    """powf need not be correctly rounded: the next float32 on either side is possible too."""
    middle = np.float32(value)
    return (
        float(middle),
        float(np.nextafter(middle, np.float32(np.inf))),
        float(np.nextafter(middle, np.float32(-np.inf))),
    )


def _with_factors(positions: NDArray[np.int64], fit: LayerFit, plain: AngleArithmetic) -> AngleArithmetic:
    """Frequency factors that turn the plain chain's angles into the measured ones, each the simplest that does."""
    n_pairs = fit.angles.shape[1]
    chain = float32_angles(plain, positions, n_pairs).astype(np.float64)[1:]
    measured = fit.angles[1:]
    weight = 1 / (_NOISE**2 + (_NOISE * measured) ** 2)
    factors = np.ones(n_pairs)
    tolerance = np.zeros(n_pairs)
    moving = np.ones(n_pairs, np.bool_) if plain.turning is None else plain.turning
    numerator, denominator = np.sum(weight * chain**2, axis=0), np.sum(weight * chain * measured, axis=0)
    usable = moving & (denominator > 0)
    factors[usable] = numerator[usable] / denominator[usable]
    tolerance[usable] = factors[usable] / np.sqrt(np.maximum(np.sum(weight * measured**2, axis=0)[usable], 1e-300))
    simple = _simplest(factors, tolerance)
    options = [simple, factors.astype(np.float32)]
    options += [np.nextafter(options[1], np.float32(np.inf)), np.nextafter(options[1], np.float32(0))]
    errors = []
    for option in options:
        trial = AngleArithmetic(plain.theta_scale, plain.freq_scale, option, turning=plain.turning)
        errors.append(np.abs(float32_angles(trial, positions, n_pairs) - fit.angles).max(axis=0))
    errors[0] = errors[0] - _NOISE
    chosen = np.choose(np.argmin(errors, axis=0), options).astype(np.float32)
    return AngleArithmetic(plain.theta_scale, plain.freq_scale, chosen, turning=plain.turning)


def _simplest(values: NDArray[np.float64], tolerance: NDArray[np.float64]) -> NDArray[np.float32]:
    """For each value the number with the shortest mantissa within the tolerance: float32."""
    mantissa, exponent = np.frexp(values)
    result = values.astype(np.float32)
    for bits in range(23, 0, -1):
        rounded = np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits)
        result = np.where(np.abs(rounded - values) <= tolerance, rounded, result).astype(np.float32)
    return result
