"""Earlier recurrent states of a sequence, to go back to where a memory cannot be cut.

Hybrid models keep attention rows per token, which can be cut, and a recurrent state, which cannot; llama.cpp saves the latter
alone with LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY (src/llama-memory-hybrid.cpp, ``state_write``).
"""

from __future__ import annotations

from dataclasses import dataclass

import llama_cpp.llama_cpp as api

from kvnotes_local.engine.llama.context import LlamaContext

MAX_BYTES = 256 << 20
"""Of all checkpoints of one sequence."""

PARTIAL = int(api.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)


@dataclass(frozen=True)
class Checkpoint:
    """The recurrent state after ``n_tokens`` tokens."""

    n_tokens: int
    blob: memoryview


class Checkpoints:
    """Checkpoints of one sequence, by length. The earliest is kept longest: it is the start of the chat."""

    def __init__(self, kept: tuple[Checkpoint, ...] = (), max_bytes: int = MAX_BYTES) -> None:
        self._kept = list(kept)
        self._max_bytes = max_bytes

    def copy(self) -> Checkpoints:
        return Checkpoints(tuple(self._kept), self._max_bytes)

    def take(self, context: LlamaContext, seq: int, n_tokens: int) -> None:
        """Remember the sequence's present state, after ``n_tokens`` tokens."""
        if n_tokens == 0 or any(one.n_tokens == n_tokens for one in self._kept):
            return
        self._kept.append(Checkpoint(n_tokens, context.get_state(seq, flags=PARTIAL)))
        self._kept.sort(key=lambda one: one.n_tokens)
        while len(self._kept) > 2 and sum(one.blob.nbytes for one in self._kept) > self._max_bytes:
            del self._kept[1]

    def nearest(self, n_tokens: int) -> Checkpoint | None:
        """The longest one that is not longer than ``n_tokens``."""
        return next((one for one in reversed(self._kept) if one.n_tokens <= n_tokens), None)

    def cut(self, n_tokens: int) -> None:
        """Forget those behind ``n_tokens``, whose tokens are no longer there."""
        self._kept = [one for one in self._kept if one.n_tokens <= n_tokens]


def go_back(context: LlamaContext, seq: int, checkpoint: Checkpoint) -> None:
    """Make a sequence that has grown since what it was at the checkpoint."""
    context.set_state(seq, checkpoint.blob, flags=PARTIAL)
    context.remove(seq, checkpoint.n_tokens)


def end_where_known(context: LlamaContext, seq: int, tokens: list[int], checkpoints: Checkpoints) -> None:
    """After an error: where the sequence has grown beyond ``tokens`` and cannot be cut, go back to the last checkpoint before
    and take what is behind it out of ``tokens``."""
    if context.try_remove(seq, len(tokens)):
        return
    checkpoint = checkpoints.nearest(len(tokens))
    if checkpoint is None:
        context.remove(seq, -1)
        tokens.clear()
    else:
        go_back(context, seq, checkpoint)
        del tokens[checkpoint.n_tokens :]
