"""Reads the metadata of a GGUF file without loading the model or decoding its vocabulary.

Mirrors the file format that llama.cpp's ggml/src/gguf.cpp (``gguf_init_from_reader``) reads: little-endian, versions 2
and 3. Long arrays are stepped over; memory and time stay bounded whatever the file claims.
"""

from __future__ import annotations

import stat
import struct
from pathlib import Path
from typing import BinaryIO

from kvnotes_local.errors import ModelError
from kvnotes_local.models.gguf_header import GGUFHeader, Scalar

MAGIC = b"GGUF"
MAX_PAIRS = 1 << 16
MAX_KEY_BYTES = 1 << 16
MAX_STRING_BYTES = 16 << 20
MAX_KEPT_BYTES = 64 << 20
MAX_SKIPPED_STRINGS = 16 << 20
MAX_KEPT_ITEMS = 4096
"""Numeric arrays up to this length are kept: they hold one value per layer."""

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def read_gguf_header(path: Path) -> GGUFHeader:
    """Read the metadata of a file. Raises ModelError when it is missing, unreadable, damaged or not GGUF."""
    path = Path(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise ModelError(f"{path} is a directory or a device, not a GGUF file. Give the file itself.")
        with path.open("rb", buffering=1 << 16) as file:
            return _Reader(path, file, status.st_size).read()
    except FileNotFoundError:
        raise ModelError(f"There is no file {path}. `kvnotes models list` shows the models that are here.") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte in it
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ModelError(f"{path} cannot be read: {reason}. Check its name and permissions.") from error


class _Reader:
    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path = path
        self.file = file
        self.size = size
        self.at = 0
        self.kept_bytes = 0
        self.skipped_strings = 0

    def read(self) -> GGUFHeader:
        version = self._version()
        n_tensors, n_pairs = self._number("Q"), self._number("Q")
        # The smallest tensor entry has a name's length, a count, a type and an offset; a pair has a length, type, byte.
        if n_tensors * 24 > self.size or n_pairs * 13 > self.size or n_pairs > MAX_PAIRS:
            raise self._damaged(f"it claims {n_tensors:,} tensors and {n_pairs:,} metadata entries")
        metadata: dict[str, Scalar] = {}
        arrays: dict[str, tuple[int | float | bool, ...]] = {}
        lengths: dict[str, int] = {}
        for _ in range(n_pairs):
            key = self._string(MAX_KEY_BYTES)
            if not key or key in metadata or key in lengths:
                raise self._damaged(f"the metadata entry {key!r:.80} is empty or there twice")
            kind = self._number("I")
            if kind == _ARRAY:
                lengths[key], items = self._array(key)
                if items is not None:
                    arrays[key] = items
            elif kind == _STRING:
                metadata[key] = self._string(MAX_STRING_BYTES)
            else:
                metadata[key] = self._scalar(key, kind)
        header = GGUFHeader(self.path, self.size, version, n_tensors, metadata, arrays, lengths)
        if not header.architecture and (header.split is None or header.split.number == 1):
            raise self._damaged("it does not name an architecture")
        return header

    def _version(self) -> int:
        magic = self.file.read(4)
        self.at = 4
        if magic != MAGIC:
            raise ModelError(f"{self.path} is not a GGUF file: {_what_instead(magic, self.size)}")
        version = self._number("I")
        if version & 0xFFFF == 0 and version:
            raise ModelError(
                f"{self.path} is a big-endian GGUF file, which this little-endian machine cannot use. "
                "Download the little-endian one, or convert it with gguf-convert-endian from the gguf package."
            )
        if version not in (2, 3):
            raise ModelError(
                f"{self.path} is a GGUF file of version {version}; versions 2 and 3 are known. "
                + ("Convert the model again." if version < 2 else "A newer kvnotes may read it.")
            )
        return version

    def _array(self, key: str) -> tuple[int, tuple[int | float | bool, ...] | None]:
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            self._skip_strings(count)
            return count, None
        if kind not in _FORMATS:
            raise self._damaged(f"the array {key!r:.80} has items of unknown type {kind}")
        item = struct.calcsize("<" + _FORMATS[kind])
        if count > MAX_KEPT_ITEMS:
            self._seek(self.at + count * item)
            return count, None
        return count, struct.unpack(f"<{count}{_FORMATS[kind]}", self._take(count * item))

    def _skip_strings(self, count: int) -> None:
        """Step over an array of strings, which has no size of its own: lengths are read from large chunks."""
        self.skipped_strings += count
        if count * 8 > self.size - self.at or self.skipped_strings > MAX_SKIPPED_STRINGS:
            raise self._damaged(f"an array claims {count:,} strings")
        length_at = struct.Struct("<Q").unpack_from
        chunk, offset = b"", 0
        while count:
            if offset + 8 > len(chunk):
                self._seek(self.at + offset)
                chunk, offset = self.file.read(1 << 20), 0
                if len(chunk) < 8:
                    raise self._truncated()
            offset += 8 + length_at(chunk, offset)[0]
            count -= 1
        self._seek(self.at + offset)

    def _scalar(self, key: str, kind: int) -> int | float | bool:
        if kind not in _FORMATS:
            raise self._damaged(f"the metadata entry {key!r:.80} has the unknown type {kind}")
        value: int | float | bool = struct.unpack("<" + _FORMATS[kind], self._take(struct.calcsize(_FORMATS[kind])))[0]
        return value

    def _number(self, format: str) -> int:
        value: int = struct.unpack("<" + format, self._take(struct.calcsize("<" + format)))[0]
        return value

    def _string(self, limit: int) -> str:
        n_bytes = self._number("Q")
        self.kept_bytes += n_bytes
        if n_bytes > self.size - self.at:
            raise self._truncated()
        if n_bytes > limit or self.kept_bytes > MAX_KEPT_BYTES:
            raise self._damaged(f"a text in it claims {n_bytes:,} bytes")
        return self._take(n_bytes).decode("utf-8", "replace")

    def _take(self, n_bytes: int) -> bytes:
        data = self.file.read(n_bytes)
        if len(data) != n_bytes:
            raise self._truncated()
        self.at += n_bytes
        return data

    def _seek(self, at: int) -> None:
        if at > self.size:
            raise self._truncated()
        self.file.seek(at)
        self.at = at

    def _truncated(self) -> ModelError:
        return self._damaged(f"it ends inside its metadata, after {self.size:,} bytes")

    def _damaged(self, what: str) -> ModelError:
        return ModelError(f"{self.path} is damaged or incomplete: {what}. Download it again.")


def _what_instead(magic: bytes, size: int) -> str:
    if size == 0:
        return "it is empty. Download it again."
    if magic == b"vers":
        return "it looks like a Git LFS pointer. Fetch the file itself (git lfs pull)."
    if magic[::-1] in (b"ggml", b"ggmf", b"ggjt", b"ggla"):
        return "it is in a format from before GGUF. Download the model in GGUF format."
    shown = (
        magic.decode("ascii") if magic.isascii() and magic.decode("ascii").isprintable() else f"bytes {magic.hex(' ')}"
    )
    return f"it starts with {shown}. Download the model in GGUF format, or convert it with llama.cpp's scripts."
