"""safetensors files written as a stream and read without trust.

The format: u64 length of the header (little endian), a JSON header, then the tensors without gaps. The safetensors
library wants all tensors in memory to write them, and has no checksums. Here each tensor's CRC-32 goes into the
metadata (``crc32``, in file order), and a SHA-256 over the header, with its own digits as zeros, guards the rest
(``header_sha256``). Both are against accidents, neither is a signature: CRC-32 finds any flipped bit and any burst of
up to 32 bits, and is fast enough to be checked on every use.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.errors import ArtifactError

TEMPORARY_PREFIX = ".kvnotes-"
TEMPORARY_SUFFIX = ".tmp"
MAX_HEADER_BYTES = 64 * 1024 * 1024
_ALIGNMENT = 64
_VERIFY_BYTES = 1 << 20
_ITEM_BYTES = {"U8": 1, "F16": 2, "BF16": 2, "I32": 4, "F32": 4}
_SHA_KEY = "header_sha256"
_CRC_KEY = "crc32"
_SHA = re.compile(rb'"header_sha256":"([0-9a-f]{64})"')
_NO_SHA = b'"header_sha256":"' + b"0" * 64 + b'"'


FileIdentity = tuple[int, ...]
"""Device, number, size and times of change of a file."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, element type (as safetensors spells it) and shape of a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        return _ITEM_BYTES[self.dtype] * prod(self.shape)


@dataclass(frozen=True)
class TensorHeader:
    """A checked header. ``starts[name]`` is the tensor's absolute offset in the file; tensors are in file order."""

    tensors: dict[str, TensorSpec]
    starts: dict[str, int]
    metadata: dict[str, str]
    crcs: tuple[int, ...]
    file_bytes: int


def write_tensor_file(
    path: Path,
    specs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    chunks: Callable[[TensorSpec], Iterable[memoryview]],
) -> None:
    """Write ``specs`` in order, the bytes of each coming from ``chunks(spec)`` piece by piece.

    The file appears under its name only when it is complete and on disk, readable by its owner only; a crash leaves at
    most a temporary file behind. Writers of the same name do not disturb each other: the last one wins.

    Raises:
        OSError: as the file system says.
        ValueError: the chunks of a tensor do not add up to its size.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(TEMPORARY_SUFFIX, TEMPORARY_PREFIX, path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_header(specs, metadata, [0] * len(specs)))
            crcs = [_write_tensor(file, spec, chunks(spec)) for spec in specs]
            file.seek(0)
            file.write(_header(specs, metadata, crcs))
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _write_tensor(file: BinaryIO, spec: TensorSpec, chunks: Iterable[memoryview]) -> int:
    crc, written = 0, 0
    for chunk in chunks:
        view = chunk.cast("B")
        crc = zlib.crc32(view, crc)
        file.write(view)
        written += view.nbytes
    if written != spec.n_bytes:
        raise ValueError(f"{spec.name}: {written} bytes were given for a tensor of {spec.n_bytes}")
    return crc


def _header(specs: Sequence[TensorSpec], metadata: Mapping[str, str], crcs: Sequence[int]) -> bytes:
    """The header with its length in front. Its size does not depend on the checksums."""
    entries: dict[str, Any] = {
        "__metadata__": {**metadata, _CRC_KEY: " ".join(f"{crc:08x}" for crc in crcs), _SHA_KEY: "0" * 64}
    }
    at = 0
    for spec in specs:
        entries[spec.name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": [at, at + spec.n_bytes]}
        at += spec.n_bytes
    # Only ASCII, so that a lone surrogate in some text cannot make the header invalid.
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    digest = hashlib.sha256(text).hexdigest().encode("ascii")
    return len(text).to_bytes(8, "little") + text.replace(_NO_SHA, _NO_SHA.replace(b"0" * 64, digest))


def _sync_folder(folder: Path) -> None:
    """Make the renaming last; Windows has no such call, and some network file systems refuse it."""
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_tensor_header(file: BinaryIO) -> TensorHeader:
    """Read and check the header: tensors lie in the file in order, without gaps, and have the size of their shape.

    Raises:
        OSError: as the file system says.
        ArtifactError: what is wrong, without the file's name and without advice; the caller knows those better.
    """
    file_bytes = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if file_bytes < 10 or not 2 <= length <= min(MAX_HEADER_BYTES, file_bytes - 8):
        raise ArtifactError(f"is no complete safetensors file ({file_bytes} bytes)")
    raw = file.read(length)
    if len(raw) != length:
        raise ArtifactError("was cut short while it was read")
    entries = _parse_json(raw)
    metadata = entries.pop("__metadata__", None)
    if not _is_string_map(metadata):
        raise ArtifactError("has no readable metadata")
    tensors, starts = _check_entries(entries, 8 + length, file_bytes)
    crcs = metadata.pop(_CRC_KEY, "")
    digest = metadata.pop(_SHA_KEY, "")
    header = TensorHeader(tensors, starts, metadata, (), file_bytes)
    if metadata.get("format") is None:
        return header  # not ours; the caller says so
    found = _SHA.findall(raw)
    if len(found) != 1 or found[0].decode() != digest or hashlib.sha256(_SHA.sub(_NO_SHA, raw)).hexdigest() != digest:
        raise ArtifactError("is damaged: its header does not fit the checksum in it")
    if not re.fullmatch(r"(?:[0-9a-f]{8}(?: |$))*", crcs) or len(crcs.split()) != len(tensors):
        raise ArtifactError("does not have one checksum for each tensor")
    return TensorHeader(tensors, starts, metadata, tuple(int(crc, 16) for crc in crcs.split()), file_bytes)


def _parse_json(raw: bytes) -> dict[str, Any]:
    def refuse_constant(text: str) -> Any:
        raise ValueError(f"{text} is no number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError("a key occurs twice")
        return made

    try:
        parsed = json.loads(raw.decode("utf-8"), parse_constant=refuse_constant, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"has an unreadable header ({str(error)[:100]})") from error
    if not isinstance(parsed, dict):
        raise ArtifactError("has a header that is no JSON object")
    return parsed


def _is_string_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _check_entries(
    entries: dict[str, Any], data_start: int, file_bytes: int
) -> tuple[dict[str, TensorSpec], dict[str, int]]:
    tensors: dict[str, TensorSpec] = {}
    starts: dict[str, int] = {}
    at = 0
    spans = {name: _check_entry(name, entry) for name, entry in entries.items()}
    for name, (spec, start, stop) in sorted(spans.items(), key=lambda item: item[1][1:]):
        if start != at:
            raise ArtifactError(f"has a gap or an overlap before tensor {name[:80]!r}")
        tensors[name] = spec
        starts[name] = data_start + start
        at = stop
    if data_start + at != file_bytes:
        raise ArtifactError(f"has {file_bytes} bytes where its header asks for {data_start + at}")
    return tensors, starts


def _check_entry(name: str, entry: Any) -> tuple[TensorSpec, int, int]:
    broken = ArtifactError(f"has a malformed entry for tensor {name[:80]!r}")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise broken
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not (isinstance(dtype, str) and dtype in _ITEM_BYTES and _are_sizes(shape) and len(shape) <= 4):
        raise broken
    if not (_are_sizes(offsets) and len(offsets) == 2):
        raise broken
    spec = TensorSpec(name, dtype, tuple(shape))
    if offsets[1] - offsets[0] != spec.n_bytes:
        raise ArtifactError(f"has tensor {name[:80]!r} with a shape that does not fit its size")
    return spec, offsets[0], offsets[1]


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 48 for value in values)


def map_tensors(file: BinaryIO, header: TensorHeader, *, verify: bool = True) -> dict[str, NDArray[np.uint8]]:
    """Memory-map the file: read-only uint8 (n_bytes,) views by tensor name, which outlive the closing of ``file``.

    ``file`` has to be the one that the header was read from: under its name there may be another one by now.

    Raises:
        OSError: as the file system says.
        ArtifactError: the file was changed in place since, or (``verify``) a checksum does not fit. A file that did not change
            since is verified once a process.
    """
    whole: NDArray[np.uint8] = np.memmap(file, dtype=np.uint8, mode="r").view(np.ndarray)
    if whole.nbytes != header.file_bytes:
        raise ArtifactError("was changed while it was read")
    views = {name: whole[start : start + header.tensors[name].n_bytes] for name, start in header.starts.items()}
    identity = file_identity(file)
    if verify and identity not in _VERIFIED:
        # zlib releases the interpreter lock; two threads are enough to reach memory speed.
        with ThreadPoolExecutor(max_workers=2) as pool:
            for (name, _), crc, wanted in zip(views.items(), pool.map(_crc, views.values()), header.crcs, strict=True):
                if crc != wanted:
                    raise ArtifactError(f"is damaged: tensor {name} does not fit its checksum")
        if len(_VERIFIED) >= _MAX_VERIFIED:
            _VERIFIED.clear()
        _VERIFIED.add(identity)
    return views


_MAX_VERIFIED = 4096
_VERIFIED: set[FileIdentity] = set()
"""Files whose checksums were found right in this process. A write in place changes the time of change, so such a file is
verified again."""


def file_identity(file: BinaryIO) -> FileIdentity:
    """What changes whenever the file does, also by a write in place."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _crc(view: NDArray[np.uint8]) -> int:
    crc = 0
    for at in range(0, view.nbytes, _VERIFY_BYTES):
        crc = zlib.crc32(view[at : at + _VERIFY_BYTES].data, crc)
    return crc
