"""Means with bootstrap intervals, and paired differences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A mean over ``n`` values with its 95 % bootstrap interval ``low … high``."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def differs(self) -> bool:
        """Of a difference: the interval leaves out zero."""
        return not self.low <= 0 <= self.high


def estimate(values: ArrayLike, groups: ArrayLike | None = None, seed: int = 0) -> Estimate:
    """Mean of float (n,). ``groups``: int (n,), values of one group (positions of one answer) depend on each other and are
    drawn together. Raises ValueError for no values."""
    x = np.asarray(values, np.float64)
    if not x.size:
        raise ValueError("an estimate needs at least one value")
    labels = np.arange(x.size) if groups is None else np.asarray(groups)
    names, index = np.unique(labels, return_inverse=True)
    sums = np.bincount(index, weights=x)
    counts = np.bincount(index).astype(np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(names), (RESAMPLES, len(names)))
    means: NDArray[np.float64] = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Estimate(float(x.mean()), float(low), float(high), int(x.size))
