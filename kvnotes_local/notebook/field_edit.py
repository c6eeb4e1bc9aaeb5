"""Changing a field: what each level does, and finding the cheapest level that suffices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.engine.protocol import Applied, Decode
from kvnotes_local.errors import ContextFullError
from kvnotes_local.notebook.changes import EVERYTHING, Change, Draft
from kvnotes_local.notebook.chat_cache import ChatCache
from kvnotes_local.notebook.edit import DEFAULT_WINDOW, LADDER, EditLevel, EditResult
from kvnotes_local.notebook.plan import PlanBuilder
from kvnotes_local.notebook.segment import Kind, Segment
from kvnotes_local.notebook.segment_factory import SegmentFactory

AUTO_SHARE = 0.2
"""AUTO may decode this share of the chat's tokens."""


def edit_field(
    segments: Sequence[Segment],
    n_cached: int,
    factory: SegmentFactory,
    name: str,
    value: str,
    level: EditLevel,
    window: int = DEFAULT_WINDOW,
) -> Change:
    """The change that a level of edit is. There is one erratum a field: an earlier one goes."""
    old = next((i for i, s in enumerate(segments) if s.kind is Kind.ERRATUM and s.name == name), None)
    draft = Draft(segments, n_cached)
    if level is not EditLevel.ERRATUM:
        reach = {EditLevel.WINDOW: window, EditLevel.FULL: EVERYTHING}.get(level, 0)
        draft.keep_with_field(name, value, factory.tokens_of, factory.text_of, window=reach, without=old)
    elif old is None:
        draft.keep()
    else:
        draft.keep(0, old).changed().keep(old + 1)
    # A window that ends before the chat does leaves stale notes behind it, so it needs the erratum as well.
    if level in {EditLevel.ERRATUM, EditLevel.FIELD_ERRATUM} or (level is EditLevel.WINDOW and draft.has_stale):
        draft.read(factory.field_erratum(name, value))
    return draft.change()


@dataclass
class Trial:
    """A level that was tried in a fork of the chat. ``seq`` holds the chat after ``change``, ``probabilities`` are those of the
    next token behind the question, float64 (n_vocab,). ``decoded``: tokens computed for both."""

    level: EditLevel
    change: Change
    seq: int
    applied: Applied
    probabilities: NDArray[np.float64]
    decoded: int

    @property
    def token(self) -> int:
        return int(np.argmax(self.probabilities))

    def overlap(self, other: Trial) -> float:
        """How much of the two distributions is the same: 1 minus their total variation distance."""
        return float(np.minimum(self.probabilities, other.probabilities).sum())


@dataclass(frozen=True)
class Choice:
    """The trial that was chosen, still in its sequence; ``decoded``: tokens of all trials; ``reason`` in words."""

    trial: Trial
    decoded: int
    reason: str

    def result(self, field: str, value: str) -> EditResult:
        """What the edit did, once its trial is gone on with."""
        applied = self.trial.applied
        return EditResult(
            field,
            value,
            self.trial.level,
            decoded=self.decoded,
            moved=applied.moved,
            reason=self.reason,
            trial=self.decoded - applied.decoded,
        )


class AutoEdit:
    """Finds the cheapest level of an edit for one question: the first whose next token the level above it gives, too."""

    def __init__(self, cache: ChatCache, factory: SegmentFactory, segments: Sequence[Segment]) -> None:
        self._cache = cache
        self._factory = factory
        self._segments = segments

    def choose(self, name: str, value: str, question: Sequence[int]) -> Choice:
        """The level for the field's new value, before ``question`` (tokens) is asked. Trials run in forks of the chat; the
        chosen one can be gone on with, so that nothing of it is computed again.

        Climbs as long as two neighbours disagree and stops at a budget of tokens: ``AUTO_SHARE`` of the chat, the question
        itself included, but at least the two cheapest levels. Raises ContextFullError where not even one can be tried.
        """
        budget = int(AUTO_SHARE * sum(segment.n_tokens for segment in self._segments)) - len(question)
        decoded = 0
        below: Trial | None = None
        for number, level in enumerate(LADDER):
            change = edit_field(self._segments, self._cache.n_cached, self._factory, name, value, level)
            cost = len(question) + sum(part.n_tokens for part in change.parts if isinstance(part, Decode))
            if below is not None and number > 1 and decoded + cost > budget:
                return Choice(below, decoded, f"{level} would have cost {cost:,} more tokens, {budget:,} are allowed")
            try:
                trial = self._try(level, change, question, cost)
            except ContextFullError:
                if below is None:
                    raise
                return Choice(below, decoded, f"the context has no room to try {level}")
            except BaseException:
                self._free(below)
                raise
            decoded += cost
            if below is not None and trial.token == below.token:
                self._free(trial)
                same = trial.overlap(below)
                return Choice(below, decoded, f"{level} gives the same next token, {same:.0%} of the distribution")
            self._free(below)
            below = trial
        assert below is not None
        return Choice(below, decoded, "no cheaper level agreed with the one above it")

    def _try(self, level: EditLevel, change: Change, question: Sequence[int], cost: int) -> Trial:
        engine = self._cache.engine
        seq = self._cache.fork(self._cache.n_cached)
        asked = None
        try:
            applied = engine.apply(seq, change.parts, logits=False)
            held = engine.tokens(seq)
            asked = engine.fork(seq, len(held))
            engine.apply(asked, PlanBuilder(len(held)).keep(0, held).decode(question).parts)
            return Trial(level, change, seq, applied, _softmax(engine.logits(asked)), cost)
        except BaseException:
            engine.free_sequence(seq)
            raise
        finally:
            if asked is not None:
                engine.free_sequence(asked)

    def _free(self, trial: Trial | None) -> None:
        if trial is not None:
            self._cache.engine.free_sequence(trial.seq)


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = np.exp(logits.astype(np.float64) - float(logits.max()))
    return np.asarray(shifted / shifted.sum())
