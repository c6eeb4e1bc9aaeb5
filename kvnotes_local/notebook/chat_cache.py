"""The engine's side of one chat: its sequence, forks of earlier states for undo, and what changes cost.

An engine process may die. What it held is then put together again from artifacts and text, once an operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kvnotes_local.contract.model_info import ModelClass
from kvnotes_local.contract.plan import Applied, Decode, Keep, Part
from kvnotes_local.contract.protocol import Engine, Progress
from kvnotes_local.errors import ArtifactError, EngineError, EngineLost
from kvnotes_local.notebook.changes import Change, common_length, rebuild
from kvnotes_local.notebook.proof import PrefillSpeed, Proof
from kvnotes_local.notebook.segment import Segment, all_tokens
from kvnotes_local.wording import counted

MAX_FORKS = 6
"""Earlier states kept in the context for undo and redo. They share cells with the present one."""


@dataclass
class ChatState:
    """Segments, and the sequence that holds the first ``n_cached`` of their tokens, unless it was given up for room meanwhile;
    None where there never was one, or no longer is."""

    segments: tuple[Segment, ...]
    seq: int | None
    n_cached: int = 0


class ChatCache:
    """Keeps one sequence of the engine in step with a chat. ``notice`` is told when the engine had to be started again."""

    def __init__(
        self,
        engine: Engine,
        notice: Callable[[str], None],
        seq: int | None = None,
        speed: PrefillSpeed | None = None,
    ) -> None:
        self.engine = engine
        self._notice = notice
        self.seq = engine.new_sequence() if seq is None else seq
        self.speed = speed or PrefillSpeed()
        self.cost = Proof()
        self._had_rows = False
        self._forks: list[ChatState] = []
        self._max_forks = 2 if engine.info.model_class is ModelClass.PREFIX_ONLY else MAX_FORKS

    @property
    def n_cached(self) -> int:
        return len(self.held)

    @property
    def held(self) -> tuple[int, ...]:
        """Tokens whose rows the engine holds; none where it was started again since."""
        try:
            return self.engine.tokens(self.seq)
        except EngineLost:
            return ()

    def apply(
        self, change: Change, *, is_question: bool = False, logits: bool = False, progress: Progress | None = None
    ) -> tuple[Segment, ...]:
        """Carry out a change; returns its segments with their freshness now. An error changes nothing but, at worst, how many
        tokens are cached. Raises EngineCrashed where the engine process dies twice."""
        try:
            self._count(self._carry_out(change.parts, logits, progress), change.repaired, is_question=is_question)
        except EngineLost as error:
            self._start_over(error)
            return self._put_together(change.segments, logits=logits, is_question=is_question, progress=progress)
        return change.segments

    def put_together_again(self, segments: Sequence[Segment], further: Sequence[int], error: EngineLost) -> None:
        """After the engine was lost: hold ``segments`` and ``further`` tokens, with logits for what comes next."""
        self._start_over(error)
        self._put_together(segments, further, logits=True)

    def adopt(self, seq: int, applied: Applied) -> None:
        """Go on with a fork to which a change was made already."""
        self.replace_sequence(seq)
        self._count(applied)

    def remember(self, segments: tuple[Segment, ...]) -> ChatState:
        """The present state, to come back to; costs no cells as long as the present one shares them."""
        while len(self._forks) >= self._max_forks:
            self.forget(self._forks[:1])
        n_cached = self.n_cached
        try:
            state = ChatState(segments, self.engine.fork(self.seq, n_cached, for_undo=True), n_cached)
        except EngineError:
            return ChatState(segments, None)  # no sequence is free: coming back will read again
        self._forks.append(state)
        return state

    def fork(self, length: int) -> int:
        """A sequence that shares the first ``length`` cells."""
        return self.engine.fork(self.seq, length)

    def bring_back(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """Before a change: hold the chat's rows again where they had to make room for other chats and could not be kept;
        returns the segments with their freshness now."""
        if not self._had_rows or self.n_cached:
            return segments
        self._had_rows = False
        return self.rebuild(segments)

    def come_back(self, state: ChatState, *, progress: Progress | None = None) -> tuple[Segment, ...]:
        """Make an earlier state the present one; returns its segments. Without its rows, what differs is made anew."""
        if self._holds(state):
            self._take_up(state)
            return state.segments
        self.forget([state])
        return self.rebuild(state.segments, progress=progress)

    def come_back_or_begin_anew(self, state: ChatState) -> None:
        """After an error: hold an earlier state again, or, where that fails too, nothing; it is read with the next change."""
        try:
            if self._holds(state):
                self._take_up(state)
                return
            self.forget([state])
            self.engine.free_sequence(self.seq)
        except EngineLost:
            pass  # its sequences are gone with it
        self.seq = self.engine.new_sequence()

    def rebuild(self, segments: Sequence[Segment], *, progress: Progress | None = None) -> tuple[Segment, ...]:
        """Make the sequence hold these segments, however far it is from them; returns them with their freshness now."""
        try:
            return self._put_together(segments, progress=progress)
        except EngineLost as error:
            self._start_over(error)
            return self._put_together(segments, progress=progress)

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
        """Give the sequences back, but keep the present state under ``key``; False where that failed."""
        self.forget(list(self._forks))
        try:
            parked = self.engine.park(self.seq, key, on_disk=on_disk)
        except EngineLost:
            return False
        if parked.forgotten:
            were = "was" if parked.forgotten == 1 else "were"
            self._notice(
                f"The saved state of {counted(parked.forgotten, 'other chat')} {were} deleted to stay within the limit for "
                "saved states; such a chat is read again when it is opened. Nothing of what was said is lost."
            )
        return parked.kept

    def check(self, segments: Sequence[Segment]) -> None:
        """Verify that the sequence holds a beginning of the chat's tokens, at the right positions. Raises EngineError."""
        held, tokens = self.held, all_tokens(segments)
        if list(held) != tokens[: len(held)]:
            at = common_length(held, tokens)
            raise EngineError(f"The engine's cache differs from the chat from token {at:,} on; read the chat again.")
        with suppress(EngineLost):  # then it holds nothing, and nothing wrong
            self.engine.check(self.seq)
        for segment in segments:
            if sum(run.n_tokens for run in segment.runs) != segment.n_tokens:
                raise EngineError(f"The freshness of a {segment.kind} segment does not cover its tokens.")

    def close(self) -> None:
        self.forget(list(self._forks))
        self.engine.free_sequence(self.seq)

    def _carry_out(self, parts: Sequence[Part], logits: bool, progress: Progress | None) -> Applied:
        before = self.engine.tokens(self.seq)
        try:
            return self.engine.apply(self.seq, parts, logits=logits, progress=progress)
        except EngineLost:
            raise
        except BaseException:
            self._fall_back(before)
            raise

    def _holds(self, state: ChatState) -> bool:
        """Are the rows of an earlier state still there?"""
        if state.seq is None:
            return False
        try:
            return len(self.engine.tokens(state.seq)) == state.n_cached
        except EngineLost:
            return False

    def _take_up(self, state: ChatState) -> None:
        """Go on with the rows of an earlier state as they are now: its sequence becomes that of the chat."""
        assert state.seq is not None
        self.engine.free_sequence(self.seq)
        self.seq = self.engine.fork(state.seq, state.n_cached)
        self.forget([state])

    def _count(self, applied: Applied, repaired: int = 0, *, is_question: bool = False) -> None:
        self._had_rows = True
        self.speed.add(applied.decoded, applied.decode_seconds)
        self.cost = self.cost.plus(applied, min(repaired, applied.decoded), is_question=is_question)

    def _start_over(self, error: EngineLost) -> None:
        """Take a sequence of the engine, which is started again by that."""
        for state in self._forks:
            state.seq = None
        self._forks.clear()
        self.seq = self.engine.new_sequence()
        self._notice(f"{error} It was started again, and the chat put together from artifacts and text.")

    def _put_together(
        self,
        segments: Sequence[Segment],
        further: Sequence[int] = (),
        *,
        logits: bool = False,
        is_question: bool = False,
        progress: Progress | None = None,
    ) -> tuple[Segment, ...]:
        """Hold ``segments`` and ``further`` tokens, whatever is held now; a skill whose artifact is damaged is read."""
        whole = self.engine.info.model_class is ModelClass.PREFIX_ONLY
        change = rebuild(segments, self.held, whole_states=whole)
        try:
            applied = self._carry_out((*change.parts, Decode(tuple(further))), logits, progress)
        except ArtifactError as error:
            self._notice(f"{error} What it held is read instead.")
            change = rebuild(segments, self.held, whole_states=whole, from_artifacts=False)
            applied = self._carry_out((*change.parts, Decode(tuple(further))), logits, progress)
        self._count(applied, change.repaired, is_question=is_question)
        return change.segments

    def _fall_back(self, before: Sequence[int]) -> None:
        """Keep of the sequence only what it held before."""
        held = self.engine.tokens(self.seq)
        if held != tuple(before):
            common = common_length(held, before)
            self.engine.apply(self.seq, [Keep(0, common)], logits=False)
