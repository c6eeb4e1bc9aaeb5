"""Find the rotation that turns one layer's key at position 0 into the keys at other positions.

The input is what a model cached for single tokens, each alone in its sequence: the same key at several positions. A
pure rotation keeps the length of every pair of elements and turns it by an angle that depends on the position alone,
not on token or head; whatever else happens shows in the residual.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.kv.rotation import LayerRotation, Pairing

EXACT = 1e-5
"""A candidate whose residual is below this is taken without trying others; float32 noise is some 1e-7."""


@dataclass(frozen=True)
class RowShape:
    """How a key row may be divided: heads of ``head_dim`` elements, ``n_rot`` of which turn."""

    head_dim: int
    n_rot: int


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to divide and pair a row."""

    head_dim: int
    offset: int
    n_rot: int
    pairing: Pairing


@dataclass(frozen=True, eq=False)
class LayerFit:
    """What one layer's keys do.

    ``residual``: largest error of a predicted key row, relative to the length of its turning part, when every pair is
    turned by the one angle measured at that position. ``angles``: float64 (n_positions, n_rot/2), radians, unwrapped.
    ``energy``: float64 (n_rot/2,), squared length of the pairs that the angles were measured on.
    """

    rotation: LayerRotation
    residual: float
    angles: NDArray[np.float64]
    energy: NDArray[np.float64]


def fit_layer(
    positions: NDArray[np.int64],
    rows: NDArray[np.float32],
    shapes: Sequence[RowShape],
    first: LayerRotation | None = None,
) -> LayerFit:
    """Fit a rotation to the keys ``rows``: float32 (n_positions, n_tokens, n_embd), row 0 being position 0.

    ``positions``: ascending, from 0, each at most 4 times the one before, so that angles can be unwrapped.
    ``shapes``: ways to divide the row, likely ones first. ``first``: a rotation found before, tried before all others.
    The best fit is returned whatever its residual; the caller decides whether it is good enough.
    """
    n_embd = rows.shape[2]
    exact = rows.astype(np.float64)
    base = exact[0]
    length = np.sqrt(np.mean(base**2, axis=1, keepdims=True))
    changed = np.max(np.abs(exact - base) / np.maximum(length, 1e-30), axis=(0, 1)) > 1e-6
    if not changed.any():
        return _fixed(n_embd, shapes, len(positions))
    best: LayerFit | None = None
    for candidate in _candidates(n_embd, changed, shapes, first):
        fit = _fit(positions, exact, candidate)
        if best is None or fit.residual < best.residual:
            best = fit
        if best.residual < EXACT:
            break
    if best is None:
        raise ValueError(f"a row of {n_embd} elements cannot be divided into heads")
    return best


def unwrap(positions: NDArray[np.int64], phases: NDArray[np.float64]) -> NDArray[np.float64]:
    """Continue ``phases`` (n, n_pairs), each known up to full turns, from small positions to large ones.

    The first row belongs to position 0 and the second to a position of less than half a turn.
    """
    angles = phases.copy()
    slope = np.zeros(phases.shape[1])
    for i in range(1, len(positions)):
        expected = slope * positions[i]
        angles[i] = phases[i] + 2 * np.pi * np.round((expected - phases[i]) / (2 * np.pi))
        slope = angles[i] / positions[i]
    return angles


def frequencies(positions: NDArray[np.int64], angles: NDArray[np.float64], noise: float = 1e-7) -> NDArray[np.float64]:
    """Least squares slope of the angles through zero, float64 (n_pairs,).

    llama.cpp computes angles in float32, so their error grows with the angle beyond a constant measuring noise: that is
    the weight of each position.
    """
    p = positions[1:, None].astype(np.float64)
    variance = noise**2 + (noise * angles[1:]) ** 2
    return np.asarray(np.sum(p * angles[1:] / variance, axis=0) / np.sum(p * p / variance, axis=0))


def split(rows: NDArray[np.float64], c: Candidate) -> NDArray[np.complex128]:
    """Pairs of the turning part as complex numbers: (..., n_head, n_rot/2)."""
    heads = rows.reshape(*rows.shape[:-1], -1, c.head_dim)[..., c.offset : c.offset + c.n_rot]
    if c.pairing is Pairing.ADJACENT:
        return np.asarray(heads[..., 0::2] + 1j * heads[..., 1::2])
    return np.asarray(heads[..., : c.n_rot // 2] + 1j * heads[..., c.n_rot // 2 :])


def _fixed(n_embd: int, shapes: Sequence[RowShape], n_positions: int) -> LayerFit:
    head_dim = next((shape.head_dim for shape in shapes if n_embd % shape.head_dim == 0), n_embd)
    rotation = LayerRotation(n_embd // head_dim, head_dim, 0, 0, Pairing.ADJACENT, np.zeros(0))
    return LayerFit(rotation, 0.0, np.zeros((n_positions, 0)), np.zeros(0))


def _fit(positions: NDArray[np.int64], rows: NDArray[np.float64], c: Candidate) -> LayerFit:
    pairs = split(rows, c)
    start = pairs[0]
    energy = np.sum(np.abs(start) ** 2, axis=(0, 1))
    correlation = np.einsum("pthi,thi->pi", pairs, start.conj())
    size = np.abs(correlation)
    turn = np.where(size > 0, correlation / np.where(size > 0, size, 1), 1)
    error = np.sum(np.abs(pairs - start * turn[:, None, None, :]) ** 2, axis=(2, 3))
    total = np.sum(np.abs(pairs) ** 2, axis=(2, 3))
    error += np.sum((rows - rows[0]) ** 2, axis=2) - np.sum(np.abs(pairs - start) ** 2, axis=(2, 3))
    residual = float(np.sqrt(np.max(np.maximum(error, 0) / np.maximum(total, 1e-300))))
    angles = unwrap(positions, np.angle(turn))
    n_head = rows.shape[2] // c.head_dim
    rotation = LayerRotation(n_head, c.head_dim, c.offset, c.n_rot, c.pairing, frequencies(positions, angles))
    return LayerFit(rotation, residual, angles, energy)


def _candidates(
    n_embd: int, changed: NDArray[np.bool_], shapes: Sequence[RowShape], first: LayerRotation | None
) -> Iterator[Candidate]:
    """Ways to divide and pair the row whose turning part holds every element that changed, likely ones first."""
    if first is not None and first.n_rot and first.n_head * first.head_dim == n_embd:
        yield Candidate(first.head_dim, first.offset, first.n_rot, first.pairing)
    hinted = [shape for shape in shapes if n_embd % shape.head_dim == 0]
    rotations: dict[int, list[int]] = {}
    for shape in hinted:
        rotations.setdefault(shape.head_dim, []).append(shape.n_rot)
    for head_dim in sorted((d for d in range(16, n_embd + 1, 2) if n_embd % d == 0), key=lambda d: (d % 32 != 0, d)):
        rotations.setdefault(head_dim, [])
    for head_dim, lengths in rotations.items():
        used = np.flatnonzero(changed.reshape(-1, head_dim).any(axis=0))
        low, high = int(used[0]) & ~1, int(used[-1]) + 1
        for n_rot in dict.fromkeys([*lengths, (high - low + 1) & ~1, (high + 1) & ~1, head_dim]):
            for offset in dict.fromkeys((0, low, head_dim - n_rot)):
                if 0 <= offset <= low and high <= offset + n_rot <= head_dim:
                    yield Candidate(head_dim, offset, n_rot, Pairing.HALVES)
                    yield Candidate(head_dim, offset, n_rot, Pairing.ADJACENT)
