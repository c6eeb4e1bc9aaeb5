"""How much of a decision each level of an edit brings round, measured against reading the text afresh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvnotes_local.contract.protocol import Engine
from kvnotes_local.evaluation.decision_cases import DecisionCase, DecisionText, choice_margin
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.notebook.notebook import Notebook

LEVELS = (
    EditLevel.FIELD,
    EditLevel.ERRATUM,
    EditLevel.FIELD_ERRATUM,
    EditLevel.WINDOW,
    EditLevel.FULL,
    EditLevel.AUTO,
)


@dataclass(frozen=True)
class EditOutcome:
    """One edit at one level. Margins: log-probability of the answer that is right before, minus the one right after.

    ``change``: the field and its values before and after. ``decoded``: tokens computed for the edit and the question, trials
    included; ``recompute``: tokens of the whole chat. ``chosen``: the level that AUTO settled on, else the level itself.
    """

    change: str
    level: EditLevel
    chosen: EditLevel
    margin_before: float
    margin_after: float
    margin: float
    decoded: int
    recompute: int

    @property
    def flips(self) -> bool:
        """Does reading afresh decide differently after the edit, and rightly both times?"""
        return self.margin_before > 0 > self.margin_after

    @property
    def recovery(self) -> float:
        """Share of the way from the old decision to the new one: 0 nothing, 1 as if read afresh."""
        return (self.margin - self.margin_before) / (self.margin_after - self.margin_before)

    @property
    def agrees(self) -> bool:
        """The same decision as reading afresh."""
        return (self.margin > 0) == (self.margin_after > 0)


def measure_edits(
    engine: Engine, text: DecisionText, done: Callable[[str], None] = lambda text: None, n_cases: int | None = None
) -> list[EditOutcome]:
    """Every case at every level, from the value in the text to the other one."""
    base = Notebook(engine, system=text.text)
    base.read()
    outcomes = []
    try:
        for case in text.cases[:n_cases]:
            outcomes += _measure(base, case)
            done(case.field)
    finally:
        base.close()
    return outcomes


def _measure(base: Notebook, case: DecisionCase) -> list[EditOutcome]:
    before = _try(base, case, None)
    after = _try(base, case, EditLevel.FULL)
    results = {EditLevel.FULL: after}
    for level in LEVELS:
        if level not in results:
            results[level] = _try(base, case, level)
    return [
        EditOutcome(
            change=f"{case.field}: {case.values[0]} → {case.values[1]}",
            level=level,
            chosen=result.chosen,
            margin_before=before.margin,
            margin_after=after.margin,
            margin=result.margin,
            decoded=result.decoded,
            recompute=result.n_tokens,
        )
        for level, result in results.items()
    ]


@dataclass(frozen=True)
class _Try:
    margin: float
    chosen: EditLevel
    decoded: int
    n_tokens: int


def _try(base: Notebook, case: DecisionCase, level: EditLevel | None) -> _Try:
    """The margin in a fork of the chat, after an edit at a level (None: without one)."""
    notebook = base.fork()
    try:
        notebook.forget_cost()
        if level is not None:
            notebook.set(case.field, case.values[1], level=level)
        reply = notebook.ask(case.ask, max_tokens=1, keep_logits=True)
        assert reply.first_logits is not None
        return _Try(
            margin=choice_margin(notebook.engine, reply.first_logits, *case.answers),
            chosen=reply.edits[0].level if reply.edits else level or EditLevel.FULL,
            decoded=reply.proof.prefilled + sum(edit.trial for edit in reply.edits),
            n_tokens=len(notebook.tokens) - reply.segment.n_tokens + reply.segment.content_start,
        )
    finally:
        notebook.close()


@dataclass(frozen=True)
class LevelSummary:
    """One level over all edits that flip. ``low``, ``high``: 95 % bootstrap interval of the median recovery."""

    level: EditLevel
    n: int
    agreement: float
    recovery: float
    low: float
    high: float
    share_decoded: float


@dataclass(frozen=True)
class EditStudy:
    """Every edit at every level, and the levels over those that flip."""

    outcomes: tuple[EditOutcome, ...]
    summary: tuple[LevelSummary, ...]


def summarize_edits(outcomes: Sequence[EditOutcome], seed: int = 0) -> list[LevelSummary]:
    """A row a level, over the edits whose decision reading afresh flips."""
    rng = np.random.default_rng(seed)
    rows = []
    for level in LEVELS:
        chosen = [one for one in outcomes if one.level is level and one.flips]
        if not chosen:
            continue
        recovery = np.array([one.recovery for one in chosen])
        resampled = np.median(rng.choice(recovery, (2000, len(recovery))), axis=1)
        low, high = np.quantile(resampled, (0.025, 0.975))
        rows.append(
            LevelSummary(
                level=level,
                n=len(chosen),
                agreement=float(np.mean([one.agrees for one in chosen])),
                recovery=float(np.median(recovery)),
                low=float(low),
                high=float(high),
                share_decoded=float(np.mean([one.decoded / one.recompute for one in chosen])),
            )
        )
    return rows
