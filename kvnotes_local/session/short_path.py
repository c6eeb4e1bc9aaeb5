"""Paths as people read them."""

from __future__ import annotations

from pathlib import Path

from kvnotes_local.terminal_text import safe_line


def short_path(path: Path) -> str:
    """From the current directory or the home directory on, where the path lies below one of them."""
    for base, sign in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(base) and path != base:
            return safe_line(sign + path.relative_to(base).as_posix())
    return safe_line(str(path))
