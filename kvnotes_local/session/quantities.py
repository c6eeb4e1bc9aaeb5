"""Sizes, ages and times as people type and read them."""

from __future__ import annotations

import re
import time
from datetime import timedelta

from kvnotes_local.errors import UsageError

_SIZE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_AGE_UNITS = {"h": 3600, "d": 86400, "w": 7 * 86400, "m": 30 * 86400, "y": 365 * 86400}


def parse_bytes(text: str) -> int:
    """``500M``, ``2.5 GiB``, ``1g``: powers of 1024. Raises UsageError."""
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,3})?)\s*([kmgt]?)(?:i?b)?\s*", text, re.IGNORECASE)
    if match is None:
        raise UsageError(f"{text!r} is no size; write it like 500M or 2G.")
    return int(float(match[1]) * _SIZE_UNITS[match[2].lower()])


def parse_age(text: str) -> timedelta:
    """``12h``, ``30d``, ``2w``, ``6m`` (months of 30 days), ``1y``. Raises UsageError."""
    match = re.fullmatch(r"\s*(\d{1,6})\s*([hdwmy])\s*", text, re.IGNORECASE)
    if match is None:
        raise UsageError(f"{text!r} is no age; write it like 12h, 30d, 2w, 6m or 1y.")
    return timedelta(seconds=int(match[1]) * _AGE_UNITS[match[2].lower()])


def human_moment(seconds: float) -> str:
    """A moment in seconds since the epoch, as clocks here show it."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def human_age(seconds: float) -> str:
    """How long ago something was."""
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        n = int(seconds // size)
        if n:
            return f"{n} {unit}{'s' if n > 1 else ''} ago"
    return "just now"


def human_seconds(seconds: float) -> str:
    """How long something will take."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def human_bytes(n: float) -> str:
    """1536 → 1.5 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" or n >= 100 else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError("unreachable")


def human_ms(ms: float) -> str:
    """Milliseconds as people say them."""
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"
