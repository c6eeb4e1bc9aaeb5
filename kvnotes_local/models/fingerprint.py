"""Which model is this? The SHA-256 of its file, or of all its parts, remembered by path, size and modification time."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.errors import ModelError
from kvnotes_local.models.parts import model_parts
from kvnotes_local.small_file import read_json


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
    known = _load(cache_dir)
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
    if cache_dir is not None:
        _save(cache_dir, {**_load(cache_dir), key: fingerprint})
    return fingerprint


def _load(cache_dir: Path | None) -> dict[str, str]:
    if cache_dir is None:
        return {}
    try:
        data = read_json(cache_dir / "fingerprints.json")
    except (OSError, ValueError):
        return {}  # missing or damaged: it is only a memory of what can be computed again
    if not isinstance(data, dict):
        return {}
    return {k: v for k, v in data.items() if isinstance(v, str) and len(v) == 64}


def _save(cache_dir: Path, known: dict[str, str]) -> None:
    try:
        write_atomically(cache_dir / "fingerprints.json", json.dumps(known, indent=0))
    except OSError:
        return  # a read-only or full cache costs time, nothing else
