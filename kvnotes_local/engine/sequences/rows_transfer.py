"""Rows of a sequence out of and into a context, whatever its sliding window hides."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.engine.llama.context import LlamaContext
from kvnotes_local.errors import EngineError
from kvnotes_local.kv.converter import RowConverter
from kvnotes_local.kv.layout import StateLayout, StateRows
from kvnotes_local.kv.reposition import reposition, reposition_into
from kvnotes_local.kv.rotation import ModelRotation
from kvnotes_local.kv.rows import concat, slice_positions
from kvnotes_local.kv.state import parse_state
from kvnotes_local.kv.state_plan import state_bytes

_BUFFER_BYTES = 24 << 20
"""Rows go to llama.cpp in blobs of about this size, always in the same memory: fresh memory has to be found and cleared by the
system first, which for a blob of 94 MB was measured to take from 5 to more than 100 ms."""


@dataclass
class TransferStats:
    """Seconds and bytes of the transfers since it was made."""

    reposition_seconds: float = 0.0
    restore_seconds: float = 0.0
    bytes_restored: int = 0


class RowsTransfer:
    """Reads and writes ranges of sequences through a spare sequence.

    ``rotation`` None: rows can be read but not moved.
    """

    def __init__(
        self,
        context: LlamaContext,
        layout: StateLayout | None,
        rotation: ModelRotation | None,
        spare: int,
        n_swa: int,
        converter: RowConverter,
    ) -> None:
        self._context = context
        self._layout = layout
        self._rotation = rotation
        self._spare = spare
        self._n_swa = n_swa
        self._converter = converter
        self._buffer: NDArray[np.uint8] = np.empty(0, np.uint8)

    @property
    def layout(self) -> StateLayout:
        """Layout of the live cache. Raises EngineError where it is not understood."""
        if self._layout is None:
            raise EngineError("Rows of this model cannot be read one by one.")
        return self._layout

    def read(self, seq: int, start: int, stop: int) -> StateRows:
        """Rows at positions ``start … stop`` of a sequence, those of sliding-window layers complete.

        llama.cpp leaves out the cells that a window masks as seen from the sequence's end (``state_write``), so with a
        window the range is copied into the spare sequence piece by piece: half windows that do not cross a multiple of
        their length, which no kind of window masks.
        """
        step = stop - start
        if self._n_swa > 0:
            step = max(1, self._n_swa // 2)
        pieces = []
        at = start
        while at < stop:
            end = min(stop, (at // step + 1) * step) if self._n_swa > 0 else stop
            self._context.copy(seq, self._spare, at, end)
            blob = self._context.get_state(self._spare)
            self._context.remove(self._spare, 0)
            pieces.append(parse_state(blob, self.layout))
            at = end
        rows = concat(pieces) if len(pieces) > 1 else pieces[0]
        counts = {
            cache.pos.size for cache, layout in zip(rows.caches, self.layout.caches, strict=True) if layout.layers
        }
        if counts != {stop - start}:
            raise EngineError(
                f"llama.cpp kept {sorted(counts)} of {stop - start:,} rows; the sliding window has dropped some. "
                "Those tokens have to be read again."
            )
        return rows

    def write(self, rows: StateRows, target: int, start: int, stats: TransferStats) -> None:
        """Rotate rows so that they begin at position ``start`` and append them to sequence ``target``."""
        if self._rotation is None:
            raise EngineError("Rows of this model cannot be moved.")
        cells = next(cache.pos for cache in rows.caches if cache.pos.size)
        first, stop = int(cells[0]), int(cells[-1]) + 1
        for at, end in self._pieces(first, stop):
            began = time.perf_counter()
            blob = reposition_into(
                slice_positions(rows, at, end),
                self.layout,
                self._rotation,
                start - first,
                self._converter,
                n_threads=self._context.n_threads,
                buffer=self._buffer,
            )
            moved = time.perf_counter()
            self.restore(blob, target, start + at - first)
            stats.reposition_seconds += moved - began
            stats.restore_seconds += time.perf_counter() - moved
            stats.bytes_restored += len(blob)

    def _pieces(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Ranges of positions of about the same length whose blobs fit into the buffer, which is made with the first of them."""
        n = stop - first
        n_pieces = -(-state_bytes(self.layout, [n] * len(self.layout.caches)) // _BUFFER_BYTES)
        step = -(-n // n_pieces)
        wanted = state_bytes(self.layout, [step] * len(self.layout.caches))
        if len(self._buffer) < wanted:
            self._buffer = np.empty(wanted, np.uint8)
        return [(at, min(at + step, stop)) for at in range(first, stop, step)]

    def moved(self, rows: StateRows, distance: int, to: StateLayout) -> StateRows:
        """Rows turned by ``distance`` positions and converted to another layout; the context is not touched."""
        if self._rotation is None:
            raise EngineError("Rows of this model cannot be moved.")
        return reposition(rows, to, self._rotation, distance, self._converter, n_threads=self._context.n_threads)

    def restore_whole(self, state: memoryview, target: int) -> None:
        """Replace a sequence by a whole state (prefix-only models)."""
        self._context.set_state(target, state)

    def restore(self, blob: memoryview, target: int, start: int) -> None:
        """Hand a blob of our own writer to llama.cpp: into the spare sequence, from there share the cells."""
        self._context.set_state(self._spare, blob)
        self._context.copy(self._spare, target, start, -1)
        self._context.remove(self._spare, 0)
