"""The metadata of a GGUF file without loading the model or decoding its vocabulary.

Mirrors the file format that llama.cpp's ggml/src/gguf.cpp (``gguf_init_from_reader``) reads: little-endian, versions 2
and 3. Long arrays are stepped over; memory and time stay bounded whatever the file claims.
"""

from __future__ import annotations

import re
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from kvnotes_local.errors import ModelError

Scalar = str | int | float | bool

MAGIC = b"GGUF"
MAX_PAIRS = 1 << 16
MAX_KEY_BYTES = 1 << 16
MAX_STRING_BYTES = 16 << 20
MAX_KEPT_BYTES = 64 << 20
MAX_SKIPPED_STRINGS = 16 << 20
MAX_KEPT_ITEMS = 4096
"""Numeric arrays up to this length are kept: they hold one value per layer."""

SPLIT_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# enum llama_ftype of include/llama.h; 33 to 35 are from before llama.cpp repacked at run time.
_QUANTIZATIONS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 4: "Q4_1_F16", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S",
    27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 33: "Q4_0_4_4", 34: "Q4_0_4_8",
    35: "Q4_0_8_8", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
_GUESSED = 1024


@dataclass(frozen=True)
class SplitPart:
    """Which part of a model that was split into several files, counted from 1."""

    number: int
    count: int


@dataclass(frozen=True)
class GGUFHeader:
    """The metadata of one file. Counts and lengths are 0 where the file does not say.

    ``metadata``: scalars and strings by full key. ``arrays``: short numeric arrays. ``array_lengths``: of every array.
    """

    path: Path
    file_bytes: int
    version: int
    n_tensors: int
    metadata: Mapping[str, Scalar] = field(repr=False)
    arrays: Mapping[str, tuple[int | float | bool, ...]] = field(repr=False)
    array_lengths: Mapping[str, int] = field(repr=False)

    def text(self, key: str) -> str:
        """A string, "" where it is missing. Raises ModelError when it is something else."""
        value = self.metadata.get(key, "")
        if not isinstance(value, str):
            raise self._wrong_type(key)
        return value

    def number(self, key: str) -> int:
        """An integer, or the largest of an array of them; 0 where it is missing. ``{arch}`` may stand in the key."""
        return max(self.numbers(key), default=0)

    def numbers(self, key: str) -> tuple[int, ...]:
        """An array of integers, or one integer as such an array; () where it is missing."""
        key = key.format(arch=self.architecture)
        value = self.arrays.get(key, self.metadata.get(key, ()))
        items = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(item, int) for item in items):
            raise self._wrong_type(key)
        return tuple(int(item) for item in items)

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    @property
    def kind(self) -> str:
        """``model``, or what else the file holds: ``adapter``, ``mmproj``, ``imatrix``, …"""
        return "mmproj" if self.architecture == "clip" else self.text("general.type") or "model"

    @property
    def name(self) -> str:
        return self.text("general.name") or self.path.stem

    @property
    def size_label(self) -> str:
        """The parameter count as the makers put it ("1.5B"), "" where they did not."""
        return self.text("general.size_label")

    @property
    def file_type(self) -> int | None:
        """``enum llama_ftype``, None where the file does not say."""
        value = self.metadata.get("general.file_type")
        return value & ~_GUESSED if isinstance(value, int) else None

    @property
    def quantization(self) -> str:
        """Such as "Q4_K_M"; "unknown" where the file does not say."""
        return _QUANTIZATIONS.get(-1 if self.file_type is None else self.file_type, "unknown")

    @property
    def context_length(self) -> int:
        """Tokens that the model was trained for."""
        return self.number("{arch}.context_length")

    @property
    def n_layer(self) -> int:
        return self.number("{arch}.block_count")

    @property
    def n_embd(self) -> int:
        return self.number("{arch}.embedding_length")

    @property
    def n_head(self) -> int:
        return self.number("{arch}.attention.head_count")

    @property
    def n_head_kv(self) -> int:
        """Key heads of a layer; the most that any layer has."""
        return self.number("{arch}.attention.head_count_kv") or self.n_head

    @property
    def key_length(self) -> int:
        """Elements of one key head."""
        return self.number("{arch}.attention.key_length") or self.n_embd // max(self.n_head, 1)

    @property
    def value_length(self) -> int:
        """Elements of one value head."""
        return self.number("{arch}.attention.value_length") or self.n_embd // max(self.n_head, 1)

    @property
    def n_vocab(self) -> int:
        return self.array_lengths.get("tokenizer.ggml.tokens", 0) or self.number("{arch}.vocab_size")

    @property
    def sliding_window(self) -> int:
        """Tokens that a sliding-window layer sees; 0 when there are none."""
        return self.number("{arch}.attention.sliding_window")

    @property
    def caches_values(self) -> bool:
        """False for MLA models, whose values come out of the cached keys."""
        return self.number("{arch}.attention.key_length_mla") == 0

    @property
    def has_chat_template(self) -> bool:
        return bool(self.metadata.get("tokenizer.chat_template"))

    @property
    def split(self) -> SplitPart | None:
        """Which part this is of a split model, None for a whole one."""
        count = self.number("split.count")
        if count > 1:
            return SplitPart(self.number("split.no") + 1, count)
        return split_of_name(self.path)

    def _wrong_type(self, key: str) -> ModelError:
        value: object = self.arrays.get(key, self.metadata.get(key))
        return ModelError(
            f"{self.path}: the metadata entry {key} is {value!r:.40}, which is not of the type it has to be. "
            "Download the model again, from another source if need be."
        )


def split_of_name(path: Path) -> SplitPart | None:
    """What the name of a file says about being one part of several (``model-00002-of-00003.gguf``)."""
    found = SPLIT_NAME.search(path.name)
    return SplitPart(int(found[1]), int(found[2])) if found and int(found[2]) > 1 else None


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
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}. Check its permissions.") from error


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
    return f"it starts with {magic!r}. Download the model in GGUF format, or convert it with llama.cpp's scripts."
