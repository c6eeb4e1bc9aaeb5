"""Small files that hold settings and records, read without trust: never endless, never waited for, never a crash."""

from __future__ import annotations

import errno
import json
import stat
from pathlib import Path
from typing import Any

MAX_BYTES = 4 << 20


def read_small(path: Path, max_bytes: int = MAX_BYTES, *, pipe: bool = False) -> str:
    """The text of a file. ``pipe``: it may be a pipe, which is waited for; users name such files, records are none.

    Raises OSError, also for a file that is larger or no file, and UnicodeDecodeError.
    """
    if not (pipe or stat.S_ISREG(path.stat().st_mode)):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes >> 10:,} KiB", str(path))
    return data.decode("utf-8")


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for what is none, also where it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
