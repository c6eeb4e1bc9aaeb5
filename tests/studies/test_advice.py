"""Advice under the tables of a report says what the rows say, and names the rows where splicing or editing loses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvnotes_local.evaluation.bench_row import BenchRow, SpliceStages
from kvnotes_local.evaluation.statistics import Estimate
from kvnotes_local.notebook.edit import EditLevel
from studies.advice import (
    edits_advice,
    lead_advice,
    length_advice,
    scenario_advice,
    together_advice,
)
from studies.edit_levels import EditStudy, LevelSummary
from studies.scenarios import ScenarioRow
from studies.skill_study import Study, WayRow


def way(name: str, kl: float, top1: float, same: int = 4) -> WayRow:
    return WayRow(name, 0.99, about(kl), about(top1), 4, same)


def about(mean: float) -> Estimate:
    return Estimate(mean, mean, mean, 16)


def study(*rows: WayRow) -> Study:
    return Study("lamp", 100, "other batches", NOISE, rows)


NOISE = way("noise floor", 0.001, 0.99)


@pytest.mark.parametrize(
    ("rows", "said", "unsaid"),
    [
        ([("artifact, seam of 0", 0.01, 0.97)], "as it is", "kvnotes.repair"),
        (
            [("artifact, seam of 0", 0.01, 0.97), ("artifact, seam of 8", 0.004, 0.98)],
            "seam of 8 KL is 0.0040",
            "No seam",
        ),
        (
            [("artifact, seam of 0", 0.03, 0.99), ("artifact, seam of 8", 0.01, 0.98)],
            "with a seam of 8 it holds",
            "as it is",
        ),
        (
            [("artifact, seam of 0", 0.01, 0.95), ("artifact, seam of 8", 0.01, 0.97)],
            "with a seam of 8 it holds",
            "as it is",
        ),
        ([("artifact, seam of 0", 0.03, 0.99), ("lead: header", 0.001, 0.99)], "No seam holds", "it holds"),
    ],
)
def test_the_cheapest_seam_that_holds_the_gate_is_advised(
    rows: list[tuple[str, float, float]], said: str, unsaid: str
) -> None:
    advice = lead_advice(study(*(way(*row) for row in rows)))
    assert said in advice
    assert unsaid not in advice


def test_numbers_of_skills_that_lose_are_named() -> None:
    good = study(way("1 skills, seam of 0", 0.01, 0.98))
    flipped = study(way("2 skills, seam of 0", 0.01, 0.98, same=3))
    far = study(way("3 skills, seam of 0", 0.05, 0.98))
    assert "None of these" in together_advice([good])
    assert "2 or 3 of these" in together_advice([good, flipped, far])


def bench_row(n_tokens: int, speedup: float) -> BenchRow:
    stages = SpliceStages(1, 1, 1, 1, 1, 1, 1)
    return BenchRow(n_tokens, 100, 8, 3, 9, 9, 9, 9, 9, None, speedup, {}, 9, 9, 9, 9, stages, 0)


def test_lengths_at_which_splicing_does_not_pay_are_named() -> None:
    rows = [bench_row(256, 1.1), bench_row(1024, 5.0)]
    assert "At 256 tokens" in length_advice(rows)
    assert "1,024" not in length_advice(rows)
    assert "from 1,024 tokens on" in length_advice(rows[1:])


def level(name: str, agreement: float, share: float) -> LevelSummary:
    return LevelSummary(EditLevel(name), 10, agreement, 1.0, 1.0, 1.0, share)


def edits(*levels: LevelSummary) -> EditStudy:
    return EditStudy((), levels)


def test_the_cheapest_level_that_loses_no_decision_is_advised() -> None:
    levels = [level("field", 0.0, 0.02), level("erratum", 1.0, 0.04), level("auto", 1.0, 0.1), level("full", 1.0, 0.9)]
    advice = edits_advice(edits(*levels))
    assert "`field` (10)" in advice
    assert "Use `erratum`" in advice
    lossy = [levels[0], level("erratum", 0.9, 0.04), level("auto", 0.9, 0.1), levels[-1]]
    advice = edits_advice(edits(*lossy))
    assert "`erratum` comes nearest, with 9 of 10 decisions for 4.0%" in advice
    assert "use `full`" in advice
    assert "Only 4 flip" in edits_advice(edits(*(replace(row, n=4) for row in levels)))
    assert "decides nothing" in edits_advice(edits())


def scenario(name: str, n: int, same: int, halves: tuple[float, float]) -> ScenarioRow:
    first, second = halves
    return ScenarioRow(
        name=name,
        n=n,
        same=same,
        right=same,
        recompute_right=n,
        cosine=(first + second) / 2,
        cosine_min=min(halves),
        kl=0.01,
        first_half=first,
        second_half=second,
        first_token_ms=10.0,
        recompute_ms=20.0,
    )


def test_lost_decisions_and_drift_are_said() -> None:
    steady = scenario("hotel, field", 28, 28, (0.999, 0.999))
    drifting = scenario("hotel, erratum", 28, 27, (0.98, 0.96))
    short = scenario("shop", 3, 3, (0.99, 0.96))  # too few questions to call it drift
    assert scenario_advice([steady, short]) == "All decisions are those of recompute."
    advice = scenario_advice([steady, drifting, short])
    assert "1 of 59 decisions" in advice
    assert "fewer are right (58 here, 59 there)" in advice
    better = replace(drifting, right=28, recompute_right=20)
    assert "no fewer are right (28 here, 20 there)" in scenario_advice([better])
    assert "(hotel, erratum)" in advice
