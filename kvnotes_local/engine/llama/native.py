"""The first contact with llama.cpp: its log goes to a bounded buffer and a file, never to the terminal.

In the engine process it goes to stderr, all of it, which kvnotes reads and writes to the file: what llama.cpp says just before
it aborts must not be lost.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import llama_cpp.llama_cpp as api

from kvnotes_local.bounded_log import BoundedLog
from kvnotes_local.terminal_text import safe_line

LOG_LINES = 400
_GPU = 1  # GGML_BACKEND_DEVICE_TYPE_GPU

_lock = threading.Lock()
_started = False
_recent: deque[str] = deque(maxlen=LOG_LINES)
_log: BoundedLog | None = None
_logs_to_stderr = False
_stderr = 2  # where people read


def start(log_path: Path | None = None) -> None:
    """Initialise llama.cpp once per process and send its log to ``log_path`` (started anew when it is too large).

    Must be called before a model is loaded; later calls may only change the path.
    """
    global _started, _log
    with _lock:
        if log_path is not None:
            _log = BoundedLog(log_path)
        if not _started:
            api.llama_log_set(_on_log, ctypes.c_void_p(0))
            if not _logs_to_stderr:
                _tell_aborts()
            api.llama_backend_init()
            _started = True


def log_to_stderr() -> None:
    """From now on llama.cpp's log goes to stderr: this is a process whose stderr is a log."""
    global _logs_to_stderr
    _logs_to_stderr = True


def recent_log(n_lines: int = 20) -> list[str]:
    """The last lines that llama.cpp logged in this process."""
    return list(_recent)[-n_lines:]


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Send file descriptor 2 to the log while a piece of llama.cpp prints directly to it."""
    if _logs_to_stderr:
        yield
        return
    global _stderr
    target = _log.path if _log is not None else Path(os.devnull)
    sys.stderr.flush()
    saved = _stderr = os.dup(2)
    try:
        with target.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        _stderr = 2
        os.close(saved)


@api.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes, user_data: object) -> None:
    log(text)


def _tell_aborts() -> None:
    # Asked of llama's library, which finds the ggml that it was loaded with; a file of ggml may be there twice, under two names.
    for library in (api._lib, bundled_library("ggml-base")):
        if library is not None and hasattr(library, "ggml_set_abort_callback"):
            library.ggml_set_abort_callback(_abort_callback)
            return


def _on_abort(message: bytes) -> None:
    """ggml found something that cannot be, such as a model file that lies, and ends this process: said in words, without gdb."""
    log(message + b"\n")
    what = safe_line(message.decode("utf-8", "replace"))
    text = (
        f"llama.cpp gave up: {what.rpartition('/')[2]}. What was acknowledged is stored. The model file may be damaged, or this "
        "build of llama.cpp has a mistake; `kvnotes doctor` checks it, and --isolate keeps llama.cpp apart.\n"
    )
    with suppress(OSError):
        os.write(_stderr, text.encode())
    os._exit(1)


_abort_callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_on_abort)


def log(text: bytes) -> None:
    """Put a line into the log, beside what llama.cpp says."""
    line = text.decode("utf-8", "replace")
    if line.strip(" .\n"):
        _recent.append(line.rstrip("\n"))
    if _logs_to_stderr:
        # A closed pipe: nobody is left to read it, and a C callback cannot raise.
        with suppress(OSError):
            os.write(2, text)
    elif _log is not None:
        _log.write(text)


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


def n_gpus() -> int:
    """GPUs that this build of llama.cpp sees (ggml/include/ggml-backend.h); 0 where it cannot be asked."""
    start()
    for name in ("ggml", "ggml-base"):
        library = bundled_library(name)
        if library is None or not hasattr(library, "ggml_backend_dev_count"):
            continue
        count, get, kind = library.ggml_backend_dev_count, library.ggml_backend_dev_get, library.ggml_backend_dev_type
        count.restype, get.restype = ctypes.c_size_t, ctypes.c_void_p
        get.argtypes, kind.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
        return sum(int(kind(get(number))) == _GPU for number in range(int(count())))
    return 0


def bundled_library(name: str) -> ctypes.CDLL | None:
    """A library that llama-cpp-python brings along, such as ``ggml-base``; None where the build has none of that name."""
    file_name = {"win32": f"{name}.dll", "darwin": f"lib{name}.dylib"}.get(sys.platform, f"lib{name}.so")
    path = Path(api.__file__).parent / "lib" / file_name
    try:
        return ctypes.CDLL(str(path)) if path.exists() else None
    except OSError:
        return None
