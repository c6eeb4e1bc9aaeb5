"""Advice under the tables of a report says what the rows say, and names the rows where splicing or editing loses."""

from __future__ import annotations

from typing import Any

import pytest

from studies.advice import (
    edits_advice,
    lead_advice,
    length_advice,
    scenario_advice,
    together_advice,
)


def way(name: str, kl: float, top1: float, same: int = 4) -> dict[str, Any]:
    return {"way": name, "kl": {"mean": kl}, "top1": {"mean": top1}, "same": same, "decisions": 4}


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
    advice = lead_advice({"noise": NOISE, "rows": [way(*row) for row in rows]})
    assert said in advice
    assert unsaid not in advice


def test_numbers_of_skills_that_lose_are_named() -> None:
    good = {"noise": NOISE, "rows": [way("1 skills, seam of 0", 0.01, 0.98)]}
    flipped = {"noise": NOISE, "rows": [way("2 skills, seam of 0", 0.01, 0.98, same=3)]}
    far = {"noise": NOISE, "rows": [way("3 skills, seam of 0", 0.05, 0.98)]}
    assert "None of these" in together_advice([good])
    assert "2 or 3 of these" in together_advice([good, flipped, far])


def test_lengths_at_which_splicing_does_not_pay_are_named() -> None:
    rows = [{"n_skill_tokens": 256, "speedup": 1.1}, {"n_skill_tokens": 1024, "speedup": 5.0}]
    assert "At 256 tokens" in length_advice(rows)
    assert "1,024" not in length_advice(rows)
    assert "from 1,024 tokens on" in length_advice(rows[1:])


def level(name: str, agreement: float, share: float) -> dict[str, Any]:
    return {"level": name, "n": 10, "agreement": agreement, "share_decoded": share}


def test_the_cheapest_level_that_loses_no_decision_is_advised() -> None:
    levels = [level("field", 0.0, 0.02), level("erratum", 1.0, 0.04), level("auto", 1.0, 0.1), level("full", 1.0, 0.9)]
    advice = edits_advice({"summary": levels})
    assert "`field` (10)" in advice
    assert "Use `erratum`" in advice
    lossy = [levels[0], level("erratum", 0.9, 0.04), level("auto", 0.9, 0.1), levels[-1]]
    advice = edits_advice({"summary": lossy})
    assert "`erratum` comes nearest, with 9 of 10 decisions for 4.0%" in advice
    assert "use `full`" in advice
    assert "Only 4 flip" in edits_advice({"summary": [{**row, "n": 4} for row in levels]})
    assert "decides nothing" in edits_advice({"summary": []})


def scenario(name: str, n: int, same: int, halves: tuple[float, float]) -> dict[str, Any]:
    first, second = halves
    return {
        "name": name,
        "n": n,
        "same": same,
        "right": same,
        "recompute_right": n,
        "first_half": first,
        "second_half": second,
    }


def test_lost_decisions_and_drift_are_said() -> None:
    steady = scenario("hotel, field", 28, 28, (0.999, 0.999))
    drifting = scenario("hotel, erratum", 28, 27, (0.98, 0.96))
    short = scenario("shop", 3, 3, (0.99, 0.96))  # too few questions to call it drift
    assert scenario_advice([steady, short]) == "All decisions are those of recompute."
    advice = scenario_advice([steady, drifting, short])
    assert "1 of 59 decisions" in advice
    assert "fewer are right (58 here, 59 there)" in advice
    better = {**drifting, "right": 28, "recompute_right": 20}
    assert "no fewer are right (28 here, 20 there)" in scenario_advice([better])
    assert "(hotel, erratum)" in advice
