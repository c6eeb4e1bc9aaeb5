"""Signals that ask the program to end: Ctrl-C, a terminal that is closed (SIGHUP), and `kill` or a shutdown (SIGTERM)."""

from __future__ import annotations

import signal

from kvnotes_local.errors import Interrupted

STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # Windows has no SIGHUP

_first: int | None = None


def interrupt(number: int, frame: object) -> None:
    """The handler as long as nothing has to be stopped first."""
    note_signal(number)
    raise Interrupted


def note_signal(number: int) -> None:
    """Remember the first signal, which gives the exit code: closing a terminal sends more than one."""
    global _first
    _first = _first or number


def exit_code() -> int:
    """Of a program that did not do what it was asked: 128 + the signal that ended it, 1 after Ctrl-C or without a signal."""
    return 1 if _first in (None, signal.SIGINT) else 128 + _first


def set_handlers(handler: signal._HANDLER) -> dict[int, signal._HANDLER]:
    """Set the handler of all of them; those that were there. SIGTERM and SIGHUP stay ignored where they are, as by nohup."""
    before: dict[int, signal._HANDLER] = {}
    for number in STOP_SIGNALS:
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, handler)
    return before
