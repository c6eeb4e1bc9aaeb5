"""Which model a file is: by content, hashed once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvnotes_local.errors import ModelError
from kvnotes_local.models.fingerprint import model_fingerprint


def test_a_renamed_moved_or_linked_model_is_the_same_and_other_bytes_are_not(tmp_path: Path) -> None:
    model, moved, other = tmp_path / "a.gguf", tmp_path / "deep" / "b.gguf", tmp_path / "c.gguf"
    moved.parent.mkdir()
    model.write_bytes(b"GGUF" + bytes(5000))
    moved.write_bytes(model.read_bytes())
    other.write_bytes(b"GGUF" + bytes(4999) + b"\1")
    assert model_fingerprint(model, tmp_path) == model_fingerprint(moved, tmp_path)
    assert model_fingerprint(model, tmp_path) != model_fingerprint(other, tmp_path)


def test_a_file_is_hashed_once_and_again_when_size_or_time_change(tmp_path: Path) -> None:
    model, cache = tmp_path / "a.gguf", tmp_path / "cache"
    model.write_bytes(b"first")
    first = model_fingerprint(model, cache)
    status = model.stat()
    model.write_bytes(b"other")
    os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert model_fingerprint(model, cache) == first  # same place, size and time: it was not read again
    assert model_fingerprint(model, None) != first
    os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert model_fingerprint(model, cache) == model_fingerprint(model, None)
    (cache / "fingerprints.json").write_text("{")
    assert model_fingerprint(model, cache) == model_fingerprint(model, None)


def test_a_model_that_cannot_be_read_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        model_fingerprint(tmp_path / "none.gguf", tmp_path)
