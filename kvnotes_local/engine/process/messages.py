"""What kvnotes and its engine process say to each other, and how it is framed on a pipe.

A frame: u32 length of the JSON, u64 length of the bytes behind it (both little endian), JSON, bytes. Each side checks what it
reads; a frame that is not one of these messages ends the engine process. Keys and values never go through the pipe.
"""

from __future__ import annotations

import json
import struct
import threading
from dataclasses import dataclass
from typing import Any, BinaryIO

from kvnotes_local.engine.process.wire import WireError, from_wire, to_wire
from kvnotes_local.records import Tagged
from kvnotes_local.small_file import parse_json

PROTOCOL_VERSION = 1
MAX_JSON_BYTES = 1 << 28
MAX_RAW_BYTES = 1 << 33
_PIECE_BYTES = 1 << 20
_HEAD = struct.Struct("<IQ")


class Hello(Tagged, frozen=True):
    """First message of the engine process."""

    version: int
    pid: int


class Call(Tagged, frozen=True):
    """Do ``name`` with these arguments. ``listens``: name of the callback whose calls are to come back as reports."""

    id: int
    name: str
    listens: str | None


class Cancel(Tagged, frozen=True):
    """Stop the calls up to ``id`` that have not ended."""

    id: int


class Result(Tagged, frozen=True):
    """Call ``id`` ended well; its value is the message's payload."""

    id: int


class Failure(Tagged, frozen=True):
    """Call ``id`` raised; the exception is the message's payload."""

    id: int


class Report(Tagged, frozen=True):
    """Call ``id`` called its callback; what it said is the message's payload."""

    id: int


class Beat(Tagged, frozen=True):
    """Sign of life. ``steps``: pieces of work begun so far. ``seconds``: what the present one took so far; ``allowed``: what it
    may take."""

    steps: int
    seconds: float
    allowed: float


Message = Hello | Call | Cancel | Result | Failure | Report | Beat


@dataclass(frozen=True)
class Frame:
    """A message with its payload: plain data that the call's types give meaning to, and the bytes of an array in it."""

    message: Message
    payload: Any
    raw: memoryview


class FrameReader:
    """Reads frames from a pipe."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self) -> Frame | None:
        """The next frame; None where the other side has gone. Raises WireError."""
        head = self._read(_HEAD.size)
        if head is None:
            return None
        n_json, n_raw = _HEAD.unpack(head)
        if n_json > MAX_JSON_BYTES or n_raw > MAX_RAW_BYTES:
            raise WireError(f"A message of {n_json + n_raw:,} bytes is none.")
        text, raw = self._read(n_json), self._read(n_raw)
        if text is None or raw is None:
            return None
        try:
            data = parse_json(bytes(text))
        except ValueError as error:
            raise WireError(f"A message cannot be read: {str(error)[:80]}.") from error
        if not isinstance(data, list) or len(data) != 2:
            raise WireError("A message is not a pair of head and payload.")
        return Frame(from_wire(Message, data[0], raw), data[1], raw)

    def _read(self, n: int) -> memoryview | None:
        """Exactly ``n`` bytes; memory is taken as they come, not for what the head merely claims."""
        buffer = bytearray()
        while len(buffer) < n:
            try:
                piece = self._file.read(min(n - len(buffer), _PIECE_BYTES))
            except (OSError, ValueError):
                return None  # closed under our hands
            if not piece:
                return None
            buffer += piece
        return memoryview(buffer)


class FrameWriter:
    """Writes frames to a pipe, from any thread."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def write(self, message: Message, payload: Any = None) -> None:
        """Send a message with a typed value. Raises OSError where the other side has gone, WireError for other types."""
        raw: list[memoryview] = []
        text = json.dumps([to_wire(message, []), to_wire(payload, raw)], separators=(",", ":")).encode("ascii")
        n_raw = sum(piece.nbytes for piece in raw)
        with self._lock:
            self._file.write(_HEAD.pack(len(text), n_raw) + text)
            for piece in raw:
                self._file.write(piece)
            self._file.flush()
