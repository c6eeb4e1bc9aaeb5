"""Which model is this? The SHA-256 of its file, or of all its parts, remembered by path, size and modification time."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from kvnotes_local.errors import ModelError
from kvnotes_local.models.parts import model_parts
from kvnotes_local.records import CachedRecord

_Digest = Annotated[str, Meta(min_length=64, max_length=64)]


def model_fingerprint(path: Path, cache_dir: Path | None) -> str:
    """64 hex digits that stay the same when the model is renamed or moved.

    ``path``: the file, or the first part of a model that was split: the others count as much. ``cache_dir``: where results are
    remembered by part (``fingerprints.json``); None computes them each time. Raises ModelError when the file cannot be read,
    or a part is missing or of another model.
    """
    digests = [_file_digest(part, cache_dir) for part in model_parts(path)]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _file_digest(path: Path, cache_dir: Path | None) -> str:
    try:
        real = path.resolve(strict=True)
        stat = real.stat()
    except OSError as error:
        raise ModelError(f"The model file {path} cannot be read: {error.strerror}. Check the path.") from error
    key = f"{real}|{stat.st_size}|{stat.st_mtime_ns}"
    record = None if cache_dir is None else CachedRecord(cache_dir / "fingerprints.json", dict[str, _Digest])
    known = {} if record is None else record.load() or {}
    if key in known:
        return known[key]
    digest = hashlib.sha256()
    try:
        with real.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    except OSError as error:
        raise ModelError(f"The model file {path} cannot be read: {error.strerror}. Check the disk.") from error
    fingerprint = digest.hexdigest()
    if record is not None:
        record.save({**(record.load() or {}), key: fingerprint})  # hashing takes time, in which others may have written
    return fingerprint
