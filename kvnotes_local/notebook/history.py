"""Undo and redo of a chat: earlier and later states that share cells with the present one."""

from __future__ import annotations

from kvnotes_local.notebook.chat_cache import ChatCache, ChatState
from kvnotes_local.notebook.segment import Segment


class History:
    """The states of one chat that can be come back to."""

    def __init__(self, cache: ChatCache) -> None:
        self._cache = cache
        self._done: list[ChatState] = []
        self._undone: list[ChatState] = []

    def did(self, state: ChatState) -> None:
        """A change was made; ``state`` was before it. What was undone before cannot be redone any more."""
        self._done.append(state)
        self._cache.forget(self._undone)
        self._undone.clear()

    def undo(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...] | None:
        """Come back to the state before the last change; its segments, or None when there is none."""
        return self._step(self._done, self._undone, segments)

    def redo(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...] | None:
        """Come back to the state after the change that was undone last; its segments, or None when there is none."""
        return self._step(self._undone, self._done, segments)

    def _step(
        self, source: list[ChatState], target: list[ChatState], segments: tuple[Segment, ...]
    ) -> tuple[Segment, ...] | None:
        if not source:
            return None
        target.append(self._cache.remember(segments))
        return self._cache.come_back(source.pop())
