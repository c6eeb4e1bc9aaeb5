"""Changing a field: what each level does, and finding the cheapest level that suffices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvnotes_local.engine.protocol import Decode
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


class AutoEdit:
    """Finds the cheapest level of an edit for one question: the first whose next token the level above it gives, too."""

    def __init__(self, cache: ChatCache, factory: SegmentFactory, segments: Sequence[Segment]) -> None:
        self._cache = cache
        self._factory = factory
        self._segments = segments

    def choose(self, name: str, value: str, question: Sequence[int]) -> EditResult:
        """The level for the field's new value, before ``question`` (tokens) is asked. Trials run in forks of the chat.

        Climbs as long as two neighbours disagree and stops at a budget of tokens (``AUTO_SHARE`` of the chat, at least 64
        and the two cheapest levels).
        """
        budget = max(64, int(AUTO_SHARE * sum(segment.n_tokens for segment in self._segments)))
        decoded = 0
        below: tuple[EditLevel, int] | None = None
        for number, level in enumerate(LADDER):
            change = edit_field(self._segments, self._cache.n_cached, self._factory, name, value, level)
            cost = len(question) + sum(part.n_tokens for part in change.parts if isinstance(part, Decode))
            if below is not None and number > 1 and decoded + cost > budget:
                reason = f"{level} would have cost {cost:,} more tokens, {budget:,} are allowed"
                return EditResult(name, value, below[0], decoded, 0, reason)
            token = self._next_token(change, question)
            decoded += cost
            if below is not None and token == below[1]:
                return EditResult(name, value, below[0], decoded, 0, f"{level} gives the same next token")
            below = (level, token)
        return EditResult(name, value, LADDER[-1], decoded, 0, "no cheaper level agreed with the one above it")

    def _next_token(self, change: Change, question: Sequence[int]) -> int:
        """The likeliest token after the change and the question."""
        engine = self._cache.engine
        seq = self._cache.fork(self._cache.n_cached)
        try:
            engine.apply(seq, change.parts, logits=False)
            held = engine.tokens(seq)
            engine.apply(seq, PlanBuilder(len(held)).keep(0, held).decode(question).parts)
            return int(np.argmax(engine.logits(seq)))
        finally:
            engine.free_sequence(seq)
