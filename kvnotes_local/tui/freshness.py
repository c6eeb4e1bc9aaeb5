"""How freshness looks: a sign, a word and a colour each, so that no colour has to be seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvnotes_local.notebook.segment import Freshness, Run


@dataclass(frozen=True)
class Look:
    """``sign``: one cell of the strip. ``style``: a colour of the theme. ``meaning``: for the help screen."""

    sign: str
    style: str
    meaning: str


LOOKS = {
    Freshness.SPLICED: Look("█", "$text-primary", "taken from a compiled skill, not computed here"),
    Freshness.REPAIRED: Look("▓", "$text-accent", "the seam of a splice, computed on this chat"),
    Freshness.FRESH: Look("▄", "$text-success", "computed on what stands before it"),
    Freshness.EDITED: Look("◆", "$text-warning", "the new value of a field"),
    Freshness.STALE: Look("░", "$text-error", "computed before something in front of it changed"),
}
"""In the order of the legend."""

_NOTABLE = (Freshness.EDITED, Freshness.REPAIRED, Freshness.STALE, Freshness.SPLICED, Freshness.FRESH)
"""Which one a cell shows that holds several: a changed field of three tokens must not vanish."""


def count_tokens(runs: Sequence[Run]) -> dict[Freshness, int]:
    """Tokens of each freshness, in the order of the legend."""
    counts = dict.fromkeys(LOOKS, 0)
    for run in runs:
        counts[run.freshness] += run.n_tokens
    return counts


def cells(runs: Sequence[Run], width: int) -> tuple[list[Freshness], int]:
    """The freshness of each of at most ``width`` cells, and how many tokens a cell stands for."""
    n_tokens = sum(run.n_tokens for run in runs)
    per_cell = max(1, -(-n_tokens // max(1, width)))
    shown: list[set[Freshness]] = [set() for _ in range(-(-n_tokens // per_cell))]
    at = 0
    for run in runs:
        for cell in range(at // per_cell, -(-(at + run.n_tokens) // per_cell)):
            shown[cell].add(run.freshness)
        at += run.n_tokens
    return [next(one for one in _NOTABLE if one in cell) for cell in shown], per_cell
