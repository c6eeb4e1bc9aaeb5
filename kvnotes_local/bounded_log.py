"""A log file that never grows beyond a limit: it is begun anew when it is full."""

from __future__ import annotations

import os
from pathlib import Path

from kvnotes_local.paths import ensure_private

MAX_LOG_BYTES = 4 * 1024 * 1024


class BoundedLog:
    """Appends to a file for this user only; several processes may. Raises KvnotesError where its folder cannot be made."""

    def __init__(self, path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
        ensure_private(path.parent)
        self.path = path
        self._max_bytes = max_bytes

    def write(self, text: bytes) -> None:
        """Append. A full disk costs the line: it must not stop the model."""
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                if os.fstat(handle).st_size + len(text) > self._max_bytes:
                    os.ftruncate(handle, 0)
                os.write(handle, text[-self._max_bytes :])
            finally:
                os.close(handle)
        except OSError:
            return
