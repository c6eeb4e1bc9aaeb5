"""Which model is this? The SHA-256 of the file, remembered by path, size and modification time."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.errors import ModelError
from kvnotes_local.small_file import read_json


def model_fingerprint(path: Path, cache_dir: Path | None) -> str:
    """64 hex digits that stay the same when the file is renamed or moved. Raises ModelError when it cannot be read.

    ``cache_dir``: where results are remembered (``fingerprints.json``); None computes it each time.
    """
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
