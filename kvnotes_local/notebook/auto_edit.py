"""Edits at the level AUTO: the cheapest level is found that suffices for one question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.contract.plan import Applied, Decode
from kvnotes_local.errors import ContextFullError, EngineLost
from kvnotes_local.notebook.changes import Change
from kvnotes_local.notebook.chat_cache import ChatCache
from kvnotes_local.notebook.edit import LADDER, EditLevel, EditResult
from kvnotes_local.notebook.field_edit import edit_field
from kvnotes_local.notebook.plan import PlanBuilder
from kvnotes_local.notebook.segment import Segment
from kvnotes_local.notebook.segment_factory import SegmentFactory
from kvnotes_local.wording import counted

AUTO_SHARE = 0.2
"""AUTO may decode this share of the chat's tokens."""


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


def settle(
    cache: ChatCache,
    factory: SegmentFactory,
    segments: tuple[Segment, ...],
    values: Mapping[str, str],
    question: Sequence[int],
) -> tuple[tuple[Segment, ...], tuple[EditResult, ...]]:
    """Give fields their new values, each at the level that ``question`` (tokens) asks for; the segments then, and what was done.

    Trials in forks that die with the engine process are made once more.
    """
    try:
        return _settle(cache, factory, segments, values, question)
    except EngineLost:
        return _settle(cache, factory, cache.rebuild(segments), values, question)


def _settle(
    cache: ChatCache,
    factory: SegmentFactory,
    segments: tuple[Segment, ...],
    values: Mapping[str, str],
    question: Sequence[int],
) -> tuple[tuple[Segment, ...], tuple[EditResult, ...]]:
    results = []
    for name, value in values.items():
        try:
            chosen = AutoEdit(cache, factory, segments).choose(name, value, question)
        except ContextFullError:
            before, level = cache.cost, EditLevel.FIELD_ERRATUM
            segments = cache.apply(edit_field(segments, cache.n_cached, factory, name, value, level))
            cost = cache.cost.since(before)
            reason = "the context has no room to try levels"
            results.append(EditResult(name, value, level, cost.prefilled, cost.moved, reason))
            continue
        cache.adopt(chosen.trial.seq, chosen.trial.applied)
        segments = chosen.trial.change.segments
        results.append(chosen.result(name, value))
    return segments, tuple(results)


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
                return Choice(
                    below, decoded, f"{level} would have cost {counted(cost, 'token')} more, of {budget:,} allowed"
                )
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
