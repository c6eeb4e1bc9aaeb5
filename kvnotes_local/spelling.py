"""Names in one spelling: macOS takes names of files apart (e and an accent), keyboards put them together (é)."""

from __future__ import annotations

import contextlib
import unicodedata
from pathlib import Path


def composed(name: str) -> str:
    """The name with each accented letter as one character where there is one (Unicode's NFC)."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def spelled_as_there(folder: Path, parts: tuple[str, ...]) -> Path:
    """A path below a folder, each part spelled as the file system has it where it has it; links are not followed."""
    path = folder
    for part in parts:
        if not part.isascii() and not (path / part).exists():
            with contextlib.suppress(OSError):  # whoever opens the file says what is wrong
                part = next((one.name for one in path.iterdir() if composed(one.name) == composed(part)), part)
        path = path / part
    return path
