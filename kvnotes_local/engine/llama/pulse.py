"""How long the present piece of llama.cpp's work has taken, and how long such a piece may take, from what was measured before.

A device that hangs does so inside one call of llama.cpp, and nothing but time tells. What is usual is measured for each kind of
work and each size of it, to a factor of two: a batch of two tokens takes nearly as long as one, and tells little of 512.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LEAST_SECONDS = 30.0
"""No piece of work is called stuck before: the machine may be busy."""

READ_BYTES_PER_SECOND = 50e6
"""Of a slow disk: where memory was short, the whole model may have to be read again within one piece of work."""

FIRST_SECONDS = 600.0
"""For work of which nothing has been measured yet, such as loading a model from a slow disk."""

FACTOR = 10.0
"""A piece may take so many times what it took lately."""

_FADE = 0.9
"""By so much an outlier counts less with each piece after it."""


@dataclass(frozen=True)
class PulseReading:
    """``steps``: pieces begun so far. ``seconds``: since the present one began, 0 between two. ``allowed``: for it."""

    steps: int
    seconds: float
    allowed: float


class Pulse:
    """Watches the pieces of work of one process; read from another thread. ``clock`` in seconds."""

    def __init__(
        self,
        least_seconds: float = LEAST_SECONDS,
        first_seconds: float = FIRST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.least_seconds = least_seconds
        self.first_seconds = first_seconds
        self.model_bytes = 0
        self._clock = clock
        self._usual: dict[
            str, dict[int, float]
        ] = {}  # by kind and by bits of the size: the longest of late, in seconds
        self._lock = threading.Lock()
        self._steps = 0
        self._began: float | None = None
        self._allowed = 0.0

    @contextmanager
    def piece(self, kind: str, size: int = 1) -> Iterator[None]:
        """One call into llama.cpp of a kind whose time grows with ``size``, at most in proportion to it."""
        allowed = self._allowed_for(kind, size)
        began = self._clock()
        with self._lock:
            self._steps += 1
            self._began, self._allowed = began, allowed
        try:
            yield
        finally:
            seconds = self._clock() - began
            with self._lock:
                self._began = None
            usual, bits = self._usual.setdefault(kind, {}), size.bit_length()
            usual[bits] = max(seconds, _FADE * usual.get(bits, 0.0))

    def _allowed_for(self, kind: str, size: int) -> float:
        usual, bits = self._usual.get(kind), size.bit_length()
        if usual is None:
            return self.first_seconds
        known = min((one for one in usual if one >= bits), default=max(usual))
        # Where only smaller pieces are known: as many of the smallest ones of their size as make up this one.
        expected = usual[known] * max(1.0, size / (1 << max(0, known - 1)) if known < bits else 1.0)
        return max(self.least_seconds, self.model_bytes / READ_BYTES_PER_SECOND, FACTOR * expected)

    def advance(self) -> None:
        """The present piece goes on: its time begins anew."""
        with self._lock:
            self._steps += 1
            if self._began is not None:
                self._began = self._clock()

    def read(self) -> PulseReading:
        with self._lock:
            seconds = 0.0 if self._began is None else self._clock() - self._began
            return PulseReading(self._steps, seconds, self._allowed)


PULSE = Pulse()
"""Of this process: llama.cpp computes one thing at a time."""
