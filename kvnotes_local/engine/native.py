"""The first contact with llama.cpp: its log goes to a bounded buffer and a file, never to the terminal."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp.llama_cpp as api

from kvnotes_local.paths import ensure_private

LOG_LINES = 400
MAX_LOG_BYTES = 4 * 1024 * 1024

_lock = threading.Lock()
_started = False
_recent: deque[str] = deque(maxlen=LOG_LINES)
_log_path: Path | None = None


def start(log_path: Path | None = None) -> None:
    """Initialise llama.cpp once per process and send its log to ``log_path`` (started anew when it is too large).

    Must be called before a model is loaded; later calls may only change the path.
    """
    global _started, _log_path
    with _lock:
        if log_path is not None:
            ensure_private(log_path.parent)
            _log_path = log_path
        if not _started:
            api.llama_log_set(_on_log, ctypes.c_void_p(0))
            api.llama_backend_init()
            _started = True


def recent_log(n_lines: int = 20) -> list[str]:
    """The last lines that llama.cpp logged in this process."""
    return list(_recent)[-n_lines:]


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Send file descriptor 2 to the log while a piece of llama.cpp prints directly to it."""
    target = _log_path or Path(os.devnull)
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with target.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


@api.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes, user_data: object) -> None:
    line = text.decode("utf-8", "replace")
    if line.strip(" .\n"):
        _recent.append(line.rstrip("\n"))
    if _log_path is None:
        return
    try:
        fresh = _log_path.exists() and _log_path.stat().st_size > MAX_LOG_BYTES
        with _log_path.open("wb" if fresh else "ab") as file:
            file.write(line.encode())
    except OSError:
        # A full disk must not stop the model, and a C callback cannot raise; the lines are still in the buffer.
        return


def supports_gpu() -> bool:
    """Can this build of llama.cpp compute on a GPU?"""
    return bool(api.llama_supports_gpu_offload())


def system_info() -> str:
    """Devices that this build of llama.cpp can use, and the CPU features that it was built with."""
    start()
    text = api.llama_print_system_info().decode("utf-8", "replace")
    features = [part.split("=")[0].strip() for part in text.split("|") if part.strip().endswith("= 1")]
    gpu = "with GPU offload" if supports_gpu() else "CPU only"
    return f"{gpu} ({', '.join(features)})"
