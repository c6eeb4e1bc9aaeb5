"""A chat at work: its segments, the engine's cache and the history in step, each change a whole that can be taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvnotes_local.contract.protocol import Progress
from kvnotes_local.errors import EngineLost
from kvnotes_local.notebook.changes import Change, field_values
from kvnotes_local.notebook.chat_cache import ChatCache
from kvnotes_local.notebook.context_room import turns_to_drop, with_room
from kvnotes_local.notebook.history import History
from kvnotes_local.notebook.listening import OnText
from kvnotes_local.notebook.on_full import OnFull
from kvnotes_local.notebook.proof import Proof
from kvnotes_local.notebook.question_joint import QuestionJoint
from kvnotes_local.notebook.segment import Segment, all_tokens

MakeChange = Callable[[tuple[Segment, ...], int], Change]
"""Makes a change of segments of which so many tokens are cached."""


class Keeper:
    """Where a chat's changes are stored. This one stores nothing."""

    def check(self) -> None:
        """Asked before a change, so that no work is done that could not be stored: raises ChatStoreError where another program
        has changed what is stored."""

    def store(self, segments: tuple[Segment, ...], what: str) -> None:
        """Store the chat as it is after a change, with the name of the operation. Raises ChatStoreError."""


class WorkingChat:
    """``segments`` are the truth; the sequence of ``cache`` holds a beginning of their tokens.

    ``unsettled``: values of fields that wait for the next question to be settled.
    """

    def __init__(
        self,
        cache: ChatCache,
        segments: tuple[Segment, ...],
        on_full: OnFull,
        keeper: Keeper,
        notice: OnText,
        joint: QuestionJoint | None,
    ) -> None:
        self.cache = cache
        self.segments = segments
        self.unsettled: dict[str, str] = {}
        self.on_full = on_full
        self.keeper = keeper
        self.joint = joint
        self._notice = notice
        self._history = History(cache)

    @property
    def tokens(self) -> list[int]:
        return all_tokens(self.segments)

    @property
    def fields(self) -> dict[str, str]:
        """Value of each field, also of those that are unsettled."""
        return field_values(self.segments) | self.unsettled

    def change(self, make: MakeChange, what: str, *, room: bool = True, progress: Progress | None = None) -> Proof:
        """Make a change that can be taken back; returns what it cost. ``room``: where the context is full, the oldest turns
        leave first."""
        before = self.cache.cost
        with self.as_a_whole():
            change = make(self.segments, self.cache.n_cached)
            excess = len(all_tokens(change.segments)) - self.cache.engine.info.n_ctx
            left = len(self.tokens) - excess
            if room and excess > 0 and turns_to_drop(self.segments, left):
                draft = with_room(
                    self.segments, self.cache.n_cached, left, self.on_full, False, self._notice, joint=self.joint
                )
                self.apply(draft.change(), progress=progress)
                change = make(self.segments, self.cache.n_cached)
            self.apply(change, progress=progress)
        self.keeper.store(self.segments, what)
        return self.cache.cost.since(before)

    @contextmanager
    def as_a_whole(self) -> Iterator[None]:
        """What is done inside is one step that can be taken back; an error takes it back at once."""
        self.keeper.check()
        self.segments = self.cache.bring_back(self.segments)
        state, unsettled = self.cache.remember(self.segments), dict(self.unsettled)
        try:
            yield
        except BaseException:
            if self.segments is state.segments:
                self.cache.forget([state])
            else:
                self.segments = state.segments
                self.cache.come_back_or_begin_anew(state)
            self.unsettled = unsettled
            raise
        self._history.did(state)

    def apply(self, change: Change, *, logits: bool = False, progress: Progress | None = None) -> None:
        """Carry a change out, without a step of its own. ``logits``: a question to be answered next."""
        self.segments = self.cache.apply(change, is_question=logits, logits=logits, progress=progress)

    def replace(self, segments: tuple[Segment, ...], what: str) -> None:
        """Go on with segments that begin with what is cached, and store them; no step that can be taken back."""
        self.segments = segments
        self.keeper.store(segments, what)

    def append(self, segments: tuple[Segment, ...], what: str) -> None:
        """Add segments that nobody has read yet, as a step that can be taken back."""
        self.keeper.check()
        self._history.did(self.cache.remember(self.segments))
        self.replace(self.segments + segments, what)

    def undo(self) -> bool:
        """Take the last change back; False when there is none. A field that is unsettled counts as one."""
        if self.unsettled:
            self.unsettled.popitem()
            return True
        self.keeper.check()
        return self._step(self._history.undo(self.segments), "undo")

    def redo(self) -> bool:
        """Make the change that was taken back; False when there is none."""
        self.keeper.check()
        return self._step(self._history.redo(self.segments), "redo")

    def fork(self, place: int) -> WorkingChat:
        """A chat of its own with the first ``place`` segments; cells are shared, and it is stored nowhere yet."""
        segments = self.segments[:place]
        try:
            seq = self.cache.fork(min(self.cache.n_cached, len(all_tokens(segments))))
            cache = ChatCache(self.cache.engine, self._notice, seq, self.cache.speed)
        except EngineLost:
            cache = ChatCache(self.cache.engine, self._notice, speed=self.cache.speed)
        twin = WorkingChat(cache, segments, self.on_full, Keeper(), self._notice, self.joint)
        twin.unsettled = dict(self.unsettled)
        return twin

    def _step(self, segments: tuple[Segment, ...] | None, what: str) -> bool:
        if segments is None:
            return False
        self.unsettled.clear()
        self.replace(segments, what)
        return True
