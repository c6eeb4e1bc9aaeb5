"""Ctrl-C, `kill` and a closed terminal stop what the engine is doing at once, and let the command end in good order; a second
Ctrl-C ends it hard."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from kvnotes_local.errors import Interrupted
from kvnotes_local.stop_signals import STOP_SIGNALS, note_signal, set_handlers

_CANCELS: list[Callable[[], None]] = []


@contextmanager
def cancel_on_interrupt(cancel: Callable[[], None]) -> Iterator[None]:
    """Call ``cancel`` on a stop signal, from another thread: the main one may be inside llama.cpp, where Python handlers wait.

    Only for the main thread; elsewhere nothing is changed. Where several are open, a signal calls the ``cancel`` of each; the
    one that was opened last has to be left first.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    receive, send = socket.socketpair()
    send.setblocking(False)
    count = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal count
        note_signal(number)
        # Only a person's second Ctrl-C means "now": closing a terminal and `timeout` send their signals twice by themselves.
        count += number == signal.SIGINT
        if count > 1:
            raise Interrupted

    def watch() -> None:
        while data := receive.recv(16):
            if any(number in STOP_SIGNALS for number in data):
                for one in tuple(_CANCELS):
                    one()

    _CANCELS.append(cancel)
    before = set_handlers(handle)
    fd_before = signal.set_wakeup_fd(send.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        _CANCELS.remove(cancel)
        signal.set_wakeup_fd(fd_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        send.close()  # ends the watcher: its next read finds the end
        watcher.join()
        receive.close()
