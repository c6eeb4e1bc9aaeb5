"""The rule of the gate, on numbers made up for it."""

from __future__ import annotations

import numpy as np
import pytest

from kvnotes_local.evaluation.fidelity import Decision, Fidelity
from kvnotes_local.evaluation.gate import clear_decisions, failures, flips_within_noise
from kvnotes_local.evaluation.logits import Closeness, compare_rows, cosine, kl_divergence


def measured(kl: float = 0.0, top1: float = 1.0, decisions: tuple[Decision, ...] = ()) -> Fidelity:
    n = 100
    agree = np.arange(n) < round(top1 * n)
    return Fidelity((Closeness(np.ones(n), np.full(n, kl), agree),), decisions)


def decision(margin: float, other: float) -> Decision:
    """Recompute prefers the first choice by ``margin``, the other way by ``other`` (the second one where negative)."""
    return Decision("chat", "Which one?", ("a", "b", "c"), "a", (0.0, -margin, -9.0), (0.0, -other, -9.0))


@pytest.mark.parametrize(
    ("kl", "noise_kl", "passes"),
    [(0.0199, 0.0, True), (0.0201, 0.0, False), (0.029, 0.01, True), (0.031, 0.01, False), (float("nan"), 0.01, False)],
)
def test_kl_may_be_thrice_the_noise_or_a_fiftieth(kl: float, noise_kl: float, passes: bool) -> None:
    assert (not failures(measured(kl), measured(noise_kl))) is passes


@pytest.mark.parametrize(("top1", "noise", "passes"), [(0.97, 1.0, True), (0.96, 1.0, False), (0.94, 0.97, True)])
def test_top1_may_be_three_points_below_the_noise(top1: float, noise: float, passes: bool) -> None:
    found = failures(measured(top1=top1 + 1e-9), measured(top1=noise))
    assert (not found) is passes


def test_a_clear_decision_must_be_the_same() -> None:
    noise = measured(decisions=(decision(1.0, 0.7), decision(5.0, 5.1)))  # noise moves margins by up to 0.3
    kept = measured(decisions=(decision(1.0, 0.1), decision(5.0, 2.0)))
    flipped = measured(decisions=(decision(1.0, -0.1), decision(5.0, 5.0)))
    close_call = measured(decisions=(decision(0.2, -0.4), decision(5.0, 5.0)))
    assert failures(kept, noise) == []
    assert len(failures(flipped, noise)) == 1
    assert "Which one?" in failures(flipped, noise)[0]
    assert failures(close_call, noise) == []
    assert len(clear_decisions(close_call, noise)) == 1
    assert [one.margin for one in flips_within_noise(close_call, noise)] == [0.2]
    assert flips_within_noise(flipped, noise) == []


def test_every_reason_is_named() -> None:
    bad = measured(kl=0.5, top1=0.5, decisions=(decision(4.0, -1.0),))
    assert len(failures(bad, measured(decisions=(decision(4.0, 4.0),)))) == 3


def test_distances_of_predictions() -> None:
    p = np.array([1.0, 2.0, 4.0], np.float32)
    q = np.array([4.0, 2.0, 1.0], np.float32)
    assert cosine(p, p + 100) == pytest.approx(1.0)
    assert kl_divergence(p, p + 100) == pytest.approx(0.0, abs=1e-6)
    probabilities = np.exp(p) / np.exp(p).sum()
    others = np.exp(q) / np.exp(q).sum()
    assert kl_divergence(p, q) == pytest.approx(float((probabilities * np.log(probabilities / others)).sum()), rel=1e-5)
    rows = compare_rows(np.stack([p, q]), np.stack([p, p]))
    assert rows.top1.tolist() == [True, False]
    assert rows.kl[0] == pytest.approx(0.0, abs=1e-9)
    assert rows.kl[1] > 0.1
