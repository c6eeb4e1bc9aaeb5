"""Ctrl-C stops what the engine is doing at once, and lets the command end in good order; a second one ends it hard."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from kvnotes_local.errors import Interrupted


@contextmanager
def cancel_on_interrupt(cancel: Callable[[], None]) -> Iterator[None]:
    """Call ``cancel`` on SIGINT, from another thread: the main one may be inside llama.cpp, where Python handlers wait.

    Only for the main thread; elsewhere nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    receive, send = socket.socketpair()
    send.setblocking(False)
    count = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 1:
            raise Interrupted

    def watch() -> None:
        while data := receive.recv(16):
            if signal.SIGINT in data:
                cancel()

    before = signal.signal(signal.SIGINT, handle)
    fd_before = signal.set_wakeup_fd(send.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(fd_before)
        signal.signal(signal.SIGINT, before)
        send.close()  # ends the watcher: its next read finds the end
        watcher.join()
        receive.close()
