"""A llama.cpp context: decoding, sequences and their states. No policy in here."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np
from numpy.typing import NDArray

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama import native
from kvnotes_local.engine.llama.model import LlamaModel
from kvnotes_local.engine.llama.pulse import PULSE
from kvnotes_local.errors import Cancelled, ContextFullError, EngineError
from kvnotes_local.kv.block_types import block_type

N_SEQUENCES = 16
"""Sequences of a context, where no other number is asked for: chats, their forks, and two spare ones for building."""

_NO_CELLS = 1
"""What llama_decode returns where the context has no free cells."""


@dataclass(frozen=True)
class Run:
    """Tokens to compute at positions ``start …`` of a sequence that ends at ``start - 1``."""

    seq: int
    tokens: tuple[int, ...]
    start: int


class AbortFlag:
    """Stops llama.cpp's graph computation without running Python code inside it.

    llama.cpp calls the abort callback before each graph node; taking the interpreter lock there would stall decoding while
    other threads run. So the callback is the C library's ``strlen`` on a two-byte buffer: "" is false, "x" is true.
    """

    def __init__(self) -> None:
        library: Any = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
        self._buffer = ctypes.create_string_buffer(2)
        self.callback = ctypes.cast(library.strlen, api.ggml_abort_callback)
        self.data = ctypes.cast(self._buffer, ctypes.c_void_p)

    def set(self) -> None:
        self._buffer[0] = b"x"

    def clear(self) -> None:
        self._buffer[0] = b"\0"

    def is_set(self) -> bool:
        return bool(self._buffer[0] != b"\0")


def _check_heads(model: LlamaModel, params: EngineParams) -> None:
    """Without flash attention llama.cpp does not check that blocks of quantized keys fit the heads (as it does with it, in
    ``llama_init_from_model``); it then reads heads from the middle of a block and computes NaN."""
    block, head = block_type(params.type_k).block_size, model.header.key_length
    if params.flash_attn is False and head % block:
        raise EngineError(
            f"{params.type_k.name} keys do not fit {model.path.name}: a block of {block} elements does not divide its heads "
            f"of {head}. Use --kv-type f16."
        )


class LlamaContext:
    """Owner of a ``llama_context *`` with one unified cache shared by ``n_seq`` sequences.

    Raises EngineError when the context cannot be made.
    """

    def __init__(
        self, model: LlamaModel, params: EngineParams, *, n_seq: int = N_SEQUENCES, abort: AbortFlag | None = None
    ) -> None:
        _check_heads(model, params)
        self.model = model
        self.n_seq = n_seq
        self.abort = abort or AbortFlag()
        raw = api.llama_context_default_params()
        raw.n_ctx = params.n_ctx
        raw.n_batch = min(params.n_batch, params.n_ctx)
        raw.n_ubatch = min(params.n_ubatch, raw.n_batch)
        raw.n_seq_max = n_seq
        self.n_threads = params.n_threads
        raw.n_threads = raw.n_threads_batch = params.n_threads
        raw.type_k = int(params.type_k)
        raw.type_v = int(params.type_v)
        raw.kv_unified = True
        raw.swa_full = True
        raw.no_perf = True
        if params.flash_attn is None:
            raw.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_AUTO
        else:
            raw.flash_attn_type = (
                api.LLAMA_FLASH_ATTN_TYPE_ENABLED if params.flash_attn else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
            )
        raw.abort_callback = self.abort.callback
        raw.abort_callback_data = self.abort.data
        with native.quiet_stderr(), PULSE.piece("context"):
            self.pointer = api.llama_init_from_model(model.pointer, raw)
        if not self.pointer:
            reason = next((line for line in reversed(native.recent_log()) if line.strip()), "no reason given")
            raise EngineError(
                f"llama.cpp could not make a context of {params.n_ctx:,} tokens with {params.type_k.name}/"
                f"{params.type_v.name} keys and values for {model.path.name}: {reason.strip()}. "
                "Try a smaller --n-ctx or another --kv-type."
            )
        self.memory = api.llama_get_memory(self.pointer)
        self.n_ctx = int(api.llama_n_ctx(self.pointer))
        # Larger batches would be computed in pieces of this size anyway; this way progress can be told and work stopped.
        self.n_batch = int(api.llama_n_ubatch(self.pointer))
        self._batch = api.llama_batch_init(self.n_batch, 0, 1)
        self._n_vocab = model.n_vocab
        self.give_way: Callable[[], bool] = lambda: False
        """Asked for cells where none are free; False where nobody can give any up."""
        self._in_flight = 0  # tokens that may not be computed yet

    def close(self) -> None:
        if self.pointer:
            api.llama_batch_free(self._batch)
            api.llama_free(self.pointer)
            self.pointer = None

    def decode(
        self,
        seq: int,
        tokens: Sequence[int],
        start: int,
        *,
        logits: bool = False,
        all_logits: NDArray[np.float32] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Compute ``tokens`` at positions ``start …`` of a sequence whose last position is ``start - 1``.

        ``logits``: compute them for the last token. ``all_logits``: float32 (len(tokens), n_vocab) to fill, one row a
        token. Raises Cancelled or ContextFullError; the sequence then ends where it ended before, or, where its memory cannot
        be cut, further on: see ``checkpoints.end_where_known``.
        """
        batch = self._batch
        for first in range(0, len(tokens), self.n_batch):
            chunk = tokens[first : first + self.n_batch]
            n = len(chunk)
            batch.n_tokens = n
            for i, token in enumerate(chunk):
                batch.token[i] = token
                batch.pos[i] = start + first + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = seq
                batch.logits[i] = all_logits is not None
            if logits and first + n == len(tokens):
                batch.logits[n - 1] = True
            status = self._decode_batch(n)
            if status != 0:
                self.try_remove(seq, start)
                raise self._decode_error(status, len(tokens), start)
            if all_logits is not None:
                for i in range(n):
                    all_logits[first + i] = self._logits_row(i)
            if progress is not None:
                progress(first + n)

    def decode_runs(self, runs: Sequence[Run], *, progress: Callable[[int], None] | None = None) -> None:
        """Compute tokens of several sequences together: batches are filled from one run after the other.

        ``progress`` is called with the tokens done so far, over all runs. Raises as ``decode``, and leaves the sequences so.
        """
        cells = [(token, run.start + at, run.seq) for run in runs for at, token in enumerate(run.tokens)]
        batch = self._batch
        for first in range(0, len(cells), self.n_batch):
            chunk = cells[first : first + self.n_batch]
            batch.n_tokens = len(chunk)
            for i, (token, position, seq) in enumerate(chunk):
                batch.token[i] = token
                batch.pos[i] = position
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = seq
                batch.logits[i] = False
            status = self._decode_batch(len(chunk))
            if status != 0:
                for run in runs:
                    self.try_remove(run.seq, run.start)
                raise self._decode_error(status, len(cells), min(run.start for run in runs))
            if progress is not None:
                progress(first + len(chunk))

    def synchronize(self) -> None:
        """Wait until what was decoded is computed: on a GPU ``decode`` comes back earlier."""
        with PULSE.piece("wait", self._in_flight):
            api.llama_synchronize(self.pointer)
        self._in_flight = 0

    def _decode_batch(self, n_tokens: int) -> int:
        """Compute the batch; llama.cpp's status. Where it finds no free cells, it changes nothing, so it can be asked again."""
        self._in_flight += n_tokens
        while True:
            with PULSE.piece("decode", n_tokens):
                status = int(api.llama_decode(self.pointer, self._batch))
            if status != _NO_CELLS or not self.give_way():
                return status

    def last_logits(self) -> NDArray[np.float32]:
        """float32 (n_vocab,), a copy, of the last decoded token for which logits were asked."""
        return self._logits_row(-1).copy()

    def require_logits(self) -> None:
        """Raises EngineError where the last decode left no logits; llama.cpp's samplers would abort the process."""
        self.synchronize()
        if not api.llama_get_logits_ith(self.pointer, -1):
            raise EngineError("No logits are there: the last call decoded no token that asked for them.")

    def remove(self, seq: int, start: int, stop: int = -1) -> None:
        """Take positions ``start … stop`` out of a sequence (-1: to the end)."""
        if not api.llama_memory_seq_rm(self.memory, seq, start, stop):
            raise EngineError(f"This model's memory cannot be cut at token {start:,}; it has to be read again.")

    def try_remove(self, seq: int, start: int) -> bool:
        """As ``remove``; False where the memory cannot be cut there (recurrent models)."""
        return bool(api.llama_memory_seq_rm(self.memory, seq, start, -1))

    def copy(self, source: int, target: int, start: int = 0, stop: int = -1) -> None:
        """Let ``target`` share the cells of ``source`` at positions ``start … stop``; no data is copied."""
        api.llama_memory_seq_cp(self.memory, source, target, start, stop)

    def first_position(self, seq: int) -> int:
        return int(api.llama_memory_seq_pos_min(self.memory, seq))

    def last_position(self, seq: int) -> int:
        """-1 for an empty sequence."""
        return int(api.llama_memory_seq_pos_max(self.memory, seq))

    def get_state(self, seq: int, *, flags: int = 0) -> memoryview:
        """The sequence's state blob, bytes."""
        self.synchronize()
        size = int(api.llama_state_seq_get_size_ext(self.pointer, seq, flags))
        buffer = np.empty(size, np.uint8)
        pointer = buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        with PULSE.piece("state bytes out", size):
            written = int(api.llama_state_seq_get_data_ext(self.pointer, pointer, size, seq, flags))
        if written != size:
            raise EngineError(f"llama.cpp wrote {written:,} of {size:,} bytes of a sequence's state.")
        return buffer.data

    def set_state(self, seq: int, blob: memoryview, *, flags: int = 0) -> None:
        """Replace the whole sequence by a state blob that our own writer made or that this context gave out.

        Raises ContextFullError where the cells do not fit.
        """
        self.synchronize()
        pointer = np.frombuffer(blob, np.uint8).ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        while True:
            with PULSE.piece("state bytes in", blob.nbytes):
                read = int(api.llama_state_seq_set_data_ext(self.pointer, pointer, blob.nbytes, seq, flags))
            if read == blob.nbytes:
                return
            api.llama_memory_seq_rm(self.memory, seq, -1, -1)
            if not self.give_way():
                raise ContextFullError(
                    f"The context of {self.n_ctx:,} tokens has no room for these rows. Use a larger --n-ctx or a shorter chat."
                )

    def _logits_row(self, index: int) -> NDArray[np.float32]:
        self.synchronize()
        pointer = api.llama_get_logits_ith(self.pointer, index)
        if not pointer:
            raise EngineError("No logits are there: the last call decoded no token that asked for them.")
        return np.ctypeslib.as_array(pointer, shape=(self._n_vocab,))

    def _decode_error(self, status: int, n_tokens: int, start: int) -> Exception:
        if status == 2:
            return Cancelled("Stopped.")
        if status == _NO_CELLS:
            return ContextFullError(
                f"{n_tokens:,} tokens behind {start:,} do not fit into the context of {self.n_ctx:,} tokens. "
                "Use a larger --n-ctx; in a chat, drop a skill or start a new one."
            )
        reason = next((line for line in reversed(native.recent_log()) if line.strip()), "no reason given")
        return EngineError(f"llama.cpp failed to decode {n_tokens:,} tokens (code {status}): {reason.strip()}")
