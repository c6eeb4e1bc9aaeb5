"""What the commands print: one JSON document for machines, tables and plain lines for people."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TextIO

from kvnotes_local.errors import KvnotesError
from kvnotes_local.terminal_text import safe_json, safe_line, safe_text


@dataclasses.dataclass(frozen=True)
class Output:
    """Where a command's words go. With ``json`` only ``document`` reaches stdout; notes go to stderr unless ``quiet``.

    ``events``: stderr is read by a program, one JSON object a line; notes become such objects.
    """

    json: bool = False
    quiet: bool = False
    events: bool = False

    def document(self, data: Mapping[str, Any]) -> None:
        """Print the result for machines; does nothing without ``--json``."""
        if self.json:
            _write(safe_json(json.dumps(data, default=_plain, ensure_ascii=False, indent=2)) + "\n")

    def text(self, text: str = "", *, end: str = "\n") -> None:
        """Print for people; nothing with ``--json``."""
        if not self.json:
            _write(safe_text(text) + end)

    def note(self, text: str) -> None:
        """Say on stderr what is going on; nothing with ``--quiet``. Where nobody can hear it, the work goes on all the same."""
        if self.events:
            self.event("note", {"message": text})
        elif not self.quiet:
            _put_if_heard(safe_text(text))

    def event(self, event: str, facts: Mapping[str, Any]) -> None:
        """Write one object on one line of stderr, in ASCII."""
        _put_if_heard(json.dumps({"event": event, **facts}, default=_plain, ensure_ascii=True))

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
        """Print columns; those whose index is in ``right`` are set to the right."""
        if not self.json:
            for line in table_lines(headers, rows, right=right):
                self.text(line)


def _write(text: str) -> None:
    """Write to stdout. Raises KvnotesError when it is full or closed; a reader that has gone stays a BrokenPipeError."""
    try:
        _put(sys.stdout, text)
    except BrokenPipeError:
        raise
    except (OSError, ValueError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "standard output is closed"
        raise KvnotesError(f"The output cannot be written: {reason}. Send it to another place.") from error


def _put_if_heard(line: str) -> None:
    with contextlib.suppress(
        OSError, ValueError, AttributeError
    ):  # its reader has gone, its disk is full, it is closed
        _put(sys.stderr, line + "\n")


def _put(stream: TextIO, text: str) -> None:
    """Write to a stream. What is for a terminal that has been closed goes nowhere: the command still has to end in order."""
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        discard(stream)
        if error.errno != errno.EIO:
            raise


def discard(stream: TextIO) -> None:
    """From now on the stream leads nowhere: what is still buffered would fail again, at the latest when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):  # a stream of a test has no file
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def table_lines(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Lines of a plain table that can be read, copied and piped."""
    cells = [[safe_line(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]

    def line(row: Sequence[str]) -> str:
        parts = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(parts).rstrip()

    return [line(cells[0]), "  ".join("─" * width for width in widths), *(line(row) for row in cells[1:])]


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (set, tuple)):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
