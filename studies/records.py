"""Results of sections as JSON files, so that a run that was stopped goes on where it was."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.errors import KvnotesError
from kvnotes_local.small_file import MAX_BYTES, read_small

T = TypeVar("T")


@dataclass(frozen=True)
class Record(Generic[T]):
    """A result and where it comes from. ``date``: ISO 8601, UTC; ``command``: what to type for the same."""

    date: str
    seconds: int
    build: str
    model: str
    machine: str
    command: str
    result: T


def write_record(path: Path, record: Record[T]) -> None:
    """Raises OSError."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(record), indent=1))


def read_record(path: Path, kind: type[Record[T]]) -> Record[T]:
    """Raises KvnotesError where the file cannot be read or holds no such result."""
    try:
        return msgspec.json.decode(read_small(path, 16 * MAX_BYTES), type=kind)
    except (OSError, ValueError, RecursionError) as error:
        raise KvnotesError(
            f"{path} is no result of this version ({error}): delete it to measure the section again."
        ) from None
