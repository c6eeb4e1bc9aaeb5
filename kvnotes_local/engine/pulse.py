"""How long the present piece of llama.cpp's work has taken, and how long such a piece may take, from what was measured before.

A device that hangs does so inside one call of llama.cpp, and nothing but time tells. What is usual is measured: seconds a token
of the batches so far, kept apart for single tokens, which cost much more each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LEAST_SECONDS = 60.0
"""No piece of work is called stuck before: the machine may be busy, or a disk may have to wake up."""

FIRST_SECONDS = 600.0
"""For work of which nothing has been measured yet, such as loading a model from a slow disk."""

FACTOR = 20.0
"""A piece may take so many times what it took at worst before."""


@dataclass(frozen=True)
class PulseReading:
    """``steps``: pieces begun so far. ``seconds``: since the present one began, 0 between two. ``allowed``: for it."""

    steps: int
    seconds: float
    allowed: float


class Pulse:
    """Watches the pieces of work of one process; read from another thread."""

    def __init__(self, least_seconds: float = LEAST_SECONDS, first_seconds: float = FIRST_SECONDS) -> None:
        self.least_seconds = least_seconds
        self.first_seconds = first_seconds
        self._worst: dict[str, float] = {}
        self._lock = threading.Lock()
        self._steps = 0
        self._began: float | None = None
        self._allowed = 0.0

    @contextmanager
    def piece(self, kind: str, size: int = 1) -> Iterator[None]:
        """One call into llama.cpp of a kind whose time grows with ``size``."""
        worst = self._worst.get(kind)
        allowed = self.first_seconds if worst is None else max(self.least_seconds, FACTOR * worst * size)
        began = time.monotonic()
        with self._lock:
            self._steps += 1
            self._began, self._allowed = began, allowed
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            with self._lock:
                self._began = None
            self._worst[kind] = max(self._worst.get(kind, 0.0), seconds / max(1, size))

    def advance(self) -> None:
        """The present piece goes on: its time begins anew."""
        with self._lock:
            self._steps += 1
            if self._began is not None:
                self._began = time.monotonic()

    def read(self) -> PulseReading:
        with self._lock:
            seconds = 0.0 if self._began is None else time.monotonic() - self._began
            return PulseReading(self._steps, seconds, self._allowed)


PULSE = Pulse()
"""Of this process: llama.cpp computes one thing at a time."""
