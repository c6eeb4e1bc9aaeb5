"""The one owner of a context's sequences and cells: who is in the context, and who makes room for whom.

Sequences have numbers that they keep; llama.cpp's own are given to those that are in the context. Where none is free, or no cell,
forks that are kept for undo are given up first, then the sequence that was not used for longest is put aside: its state goes to
the shelf and comes back when it is used again. One whose state could not be kept holds nothing from then on.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from kvnotes_local.engine.llama.checkpoints import Checkpoints
from kvnotes_local.engine.llama.context import LlamaContext
from kvnotes_local.engine.sequences.builder import SequenceState
from kvnotes_local.engine.sequences.state_shelf import ShelvedState, StateShelf
from kvnotes_local.errors import EngineError

_ABSENT = -1

Blob = Callable[[SequenceState], memoryview]
"""Makes the whole state of a sequence that is in the context."""


class Sequences:
    """``n``: how many may be in the context at once; llama.cpp's numbers 0 … n - 1. ``forgotten``: states of other chats that
    left the shelf since they were counted last."""

    def __init__(self, context: LlamaContext, shelf: StateShelf, blob: Blob, n: int) -> None:
        self._context = context
        self._shelf = shelf
        self._blob = blob
        self._n = n
        self._states: dict[int, SequenceState] = {}  # the least recently used first
        self._forks: set[int] = set()
        self._busy: list[int] = []
        self._name = secrets.token_hex(8)
        self.forgotten = 0
        context.give_way = self._give_way

    def new(self, *, for_undo: bool = False) -> int:
        """Number of an empty sequence. ``for_undo``: it makes nobody but others of its kind give way, and is given up first.
        Raises EngineError where none is free."""
        id = self._free_id(forks_only=for_undo)
        number = next(number for number in count() if number not in self._states)
        self._states[number] = SequenceState(id)
        if for_undo:
            self._forks.add(number)
        return number

    @contextmanager
    def at_work(self, *numbers: int) -> Iterator[list[SequenceState]]:
        """These sequences, in the context; none of them gives way meanwhile. Raises EngineError."""
        n_before = len(self._busy)
        self._busy += numbers
        try:
            yield [self._present(number) for number in numbers]
        finally:
            del self._busy[n_before:]

    def tokens(self, number: int) -> tuple[int, ...]:
        """What a sequence holds. One that was put aside comes back for it, so that what is said holds for the next call."""
        if number in self._forks:
            return tuple(self._known(number).tokens)
        with self.at_work(number) as (state,):
            return tuple(state.tokens)

    def free(self, number: int) -> None:
        state = self._known(number)
        if state.id != _ABSENT:
            self._context.remove(state.id, -1)
        else:
            self._shelf.discard(self._key(number))
        del self._states[number]
        self._forks.discard(number)

    def shelved(self, number: int) -> ShelvedState:
        """The state of a sequence, which need not come back for it. Raises EngineError where it cannot be had."""
        state = self._known(number)
        if state.id != _ABSENT or not state.tokens:
            return ShelvedState(tuple(state.tokens), self._blob(state) if state.tokens else memoryview(b""))
        shelved = self._take(number)
        if shelved is None:
            raise EngineError("The state of a chat that was put aside is gone; the chat has to be read again.")
        return shelved

    def close(self) -> None:
        """Leave nothing of what was put aside on disk."""
        for number, state in self._states.items():
            if state.id == _ABSENT:
                self._shelf.discard(self._key(number))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _known(self, number: int) -> SequenceState:
        if number not in self._states:
            raise EngineError(f"There is no sequence {number}.")
        return self._states[number]

    def _present(self, number: int) -> SequenceState:
        state = self._known(number)
        self._states[number] = self._states.pop(number)
        if state.id == _ABSENT:
            state.id = self._free_id()
            self._bring_back(number, state)
        return state

    def _bring_back(self, number: int, state: SequenceState) -> None:
        shelved = self._take(number) if state.tokens else None
        if shelved is not None:
            try:
                self._context.set_state(state.id, shelved.blob)
                return
            except EngineError:
                pass  # no room even with nobody else there: the chat is read as far as it fits
        _empty(state)

    def _take(self, number: int) -> ShelvedState | None:
        shelved = self._shelf.take(self._key(number))
        self._shelf.discard(self._key(number))  # of what was spilled to disk, the file
        return shelved

    def _free_id(self, *, forks_only: bool = False) -> int:
        while True:
            taken = {state.id for state in self._states.values()}
            free = next((id for id in range(self._n) if id not in taken), None)
            if free is not None:
                return free
            if not self._give_way(forks_only=forks_only):
                raise EngineError(f"All {self._n} sequences of the context are at work. Use more --sequences.")

    def _give_way(self, *, forks_only: bool = False) -> bool:
        """One sequence leaves the context; False where none can."""
        idle = [number for number, one in self._states.items() if one.id != _ABSENT and number not in self._busy]
        fork = next((number for number in idle if number in self._forks), None)
        if fork is not None:
            self._leave(self._states[fork])
            _empty(self._states[fork])
            return True
        if forks_only or not idle:
            return False
        self._put_aside(idle[0])
        return True

    def _put_aside(self, number: int) -> None:
        state = self._states[number]
        if state.tokens:
            parked = self._shelf.put(self._key(number), ShelvedState(tuple(state.tokens), self._blob(state)))
            self.forgotten += parked.forgotten
            if not parked.kept:
                _empty(state)
        self._leave(state)

    def _leave(self, state: SequenceState) -> None:
        self._context.remove(state.id, -1)
        state.id = _ABSENT

    def _key(self, number: int) -> str:
        return f"put aside {self._name} {number}"


def _empty(state: SequenceState) -> None:
    state.tokens.clear()
    state.checkpoints = Checkpoints()
