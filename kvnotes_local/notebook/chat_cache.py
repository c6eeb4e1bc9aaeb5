"""The engine's side of one chat: its sequence, forks of earlier states for undo, and what changes cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvnotes_local.engine.protocol import Applied, Engine, Keep, ModelClass, Part, Progress
from kvnotes_local.errors import ContextFullError, EngineError
from kvnotes_local.notebook.changes import common_length, rebuild
from kvnotes_local.notebook.proof import PrefillSpeed, Proof
from kvnotes_local.notebook.segment import Segment, all_tokens

MAX_FORKS = 6
"""Earlier states kept in the context for undo and redo. They share cells with the present one."""


@dataclass
class ChatState:
    """Segments, and the sequence that holds a beginning of their tokens; None once it was given up for room."""

    segments: tuple[Segment, ...]
    seq: int | None


class ChatCache:
    """Keeps one sequence of the engine in step with a chat."""

    def __init__(self, engine: Engine, seq: int | None = None) -> None:
        self.engine = engine
        self.seq = engine.new_sequence() if seq is None else seq
        self.speed = PrefillSpeed()
        self.cost = Proof()
        self._forks: list[ChatState] = []
        self._max_forks = 2 if engine.info.model_class is ModelClass.PREFIX_ONLY else MAX_FORKS

    @property
    def n_cached(self) -> int:
        return len(self.engine.tokens(self.seq))

    def apply(
        self,
        parts: Sequence[Part],
        *,
        repaired: int = 0,
        is_question: bool = False,
        logits: bool = False,
        progress: Progress | None = None,
    ) -> Applied:
        """Carry out a plan; where the context is full, earlier states are given up first. An error changes nothing but,
        at worst, how many tokens are cached."""
        before = self.engine.tokens(self.seq)
        while True:
            try:
                applied = self.engine.apply(self.seq, parts, logits=logits, in_place=not self._forks, progress=progress)
                break
            except ContextFullError:
                if not self._give_up_oldest():
                    self._fall_back(before)
                    raise
            except BaseException:
                self._fall_back(before)
                raise
        self.speed.add(applied.decoded, applied.decode_seconds)
        self.cost = self.cost.plus(applied, min(repaired, applied.decoded), is_question=is_question)
        return applied

    def remember(self, segments: tuple[Segment, ...]) -> ChatState:
        """The present state, to come back to; costs no cells as long as the present one shares them."""
        while len(self._forks) >= self._max_forks:
            self._give_up_oldest()
        try:
            state = ChatState(segments, self.engine.fork(self.seq, self.n_cached))
        except EngineError:
            return ChatState(segments, None)  # no sequence is free: coming back will read again
        self._forks.append(state)
        return state

    def fork(self, length: int) -> int:
        """A sequence that shares the first ``length`` cells. Earlier states are given up where no sequence is free."""
        while True:
            try:
                return self.engine.fork(self.seq, length)
            except EngineError:
                if not self._give_up_oldest():
                    raise

    def come_back(self, state: ChatState, *, progress: Progress | None = None) -> tuple[Segment, ...]:
        """Make an earlier state the present one; returns its segments. Without its rows, what differs is made anew."""
        if state.seq is not None:
            self._forks = [fork for fork in self._forks if fork is not state]
            self.engine.free_sequence(self.seq)
            self.seq, state.seq = state.seq, None
            return state.segments
        return self.rebuild(state.segments, progress=progress)

    def rebuild(self, segments: Sequence[Segment], *, progress: Progress | None = None) -> tuple[Segment, ...]:
        """Make the sequence hold these segments, however far it is from them; returns them with their freshness now."""
        whole = self.engine.info.model_class is ModelClass.PREFIX_ONLY
        change = rebuild(segments, self.engine.tokens(self.seq), whole_states=whole)
        self.apply(change.parts, repaired=change.repaired, progress=progress)
        return change.segments

    def forget(self, states: Sequence[ChatState]) -> None:
        """These states will not be come back to."""
        for state in states:
            if state.seq is not None:
                self._forks = [fork for fork in self._forks if fork is not state]
                self.engine.free_sequence(state.seq)
                state.seq = None

    def replace_sequence(self, seq: int) -> None:
        """Go on with another sequence."""
        self.engine.free_sequence(self.seq)
        self.seq = seq

    def park(self, key: str, *, on_disk: bool) -> bool:
        """Give the sequences back, but keep the present state under ``key``."""
        self.forget(list(self._forks))
        return self.engine.park(self.seq, key, on_disk=on_disk)

    def check(self, segments: Sequence[Segment]) -> None:
        """Verify that the sequence holds a beginning of the chat's tokens, at the right positions. Raises EngineError."""
        held, tokens = self.engine.tokens(self.seq), all_tokens(segments)
        if list(held) != tokens[: len(held)]:
            at = common_length(held, tokens)
            raise EngineError(f"The engine's cache differs from the chat from token {at:,} on; read the chat again.")
        self.engine.check(self.seq)
        for segment in segments:
            if sum(run.n_tokens for run in segment.runs) != segment.n_tokens:
                raise EngineError(f"The freshness of a {segment.kind} segment does not cover its tokens.")

    def close(self) -> None:
        self.forget(list(self._forks))
        self.engine.free_sequence(self.seq)

    def _fall_back(self, before: Sequence[int]) -> None:
        """Keep of the sequence only what it held before."""
        held = self.engine.tokens(self.seq)
        if held != tuple(before):
            common = common_length(held, before)
            self.engine.apply(self.seq, [Keep(0, common)], logits=False)

    def _give_up_oldest(self) -> bool:
        if not self._forks:
            return False
        self.forget(self._forks[:1])
        return True
