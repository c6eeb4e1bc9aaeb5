"""How far apart two predictions of the next token are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Closeness:
    """Positions of one answer, compared one by one.

    ``cosine``: float64 (n,), of the logits; ``kl``: float64 (n,), KL(recompute ‖ other) in nats; ``top1``: bool (n,), the
    same most likely token.
    """

    cosine: NDArray[np.float64]
    kl: NDArray[np.float64]
    top1: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ComparedAnswers:
    """Several answers; the figures are over the positions of all of them."""

    answers: tuple[Closeness, ...]

    @property
    def kl(self) -> NDArray[np.float64]:
        """float64 (n_positions,)."""
        return np.concatenate([one.kl for one in self.answers])

    @property
    def n_positions(self) -> int:
        return sum(len(one.kl) for one in self.answers)

    @property
    def kl_mean(self) -> float:
        return float(self.kl.mean())

    @property
    def cosine_mean(self) -> float:
        return float(np.concatenate([one.cosine for one in self.answers]).mean())

    @property
    def top1_agreement(self) -> float:
        return float(np.concatenate([one.top1 for one in self.answers]).mean())


def compare_rows(recompute: NDArray[np.float32], other: NDArray[np.float32]) -> Closeness:
    """Compare float32 (n, n_vocab) row by row."""
    n = len(recompute)
    cosines, kls = np.empty(n), np.empty(n)
    for i in range(n):  # a row at a time: vocabularies are large
        cosines[i] = cosine(recompute[i], other[i])
        kls[i] = kl_divergence(recompute[i], other[i])
    return Closeness(cosines, kls, recompute.argmax(axis=1) == other.argmax(axis=1))


def cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Cosine of two vectors of logits, each taken without its mean (adding a constant changes no probability)."""
    x, y = a.astype(np.float64) - a.mean(), b.astype(np.float64) - b.mean()
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def kl_divergence(p_logits: NDArray[np.float32], q_logits: NDArray[np.float32]) -> float:
    """KL(p ‖ q) in nats of the distributions that two vectors of logits stand for."""
    p = log_softmax(p_logits)
    return float((np.exp(p) * (p - log_softmax(q_logits))).sum())


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Natural logarithms of the probabilities, float64."""
    x = logits.astype(np.float64) - float(logits.max())
    return np.asarray(x - np.log(np.exp(x).sum()))
