"""Damage of any kind is noticed: an artifact opens with exactly the rows that were written, or not at all."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from kvnotes_local.artifacts.artifact import open_artifact
from kvnotes_local.artifacts.writer import write_artifact, write_state_artifact
from kvnotes_local.errors import ArtifactError
from tests.artifacts.samples import LAYOUTS, META, meta_for, random_rows, same_rows


def mutate(data: bytes, pick: random.Random) -> bytes:
    """One accident: flipped bits, a changed run, a hole, bytes lost, doubled or added, a swap of two blocks."""
    changed = bytearray(data)
    # The header is a small part of the file, and its start the most delicate one.
    limit = pick.choice([8, 64, 2500, len(data)])
    at = pick.randrange(min(limit, len(data)))
    length = pick.choice([1, 2, 3, 8, 64, 512])
    kind = pick.randrange(8)
    if kind <= 1:
        changed[at] ^= 1 << pick.randrange(8)
    elif kind == 2:
        changed[at : at + length] = pick.randbytes(length)
    elif kind == 3:
        changed[at : at + length] = bytes(min(length, len(data) - at))
    elif kind == 4:
        del changed[at : at + length]
    elif kind == 5:
        changed[at:at] = data[at : at + length]
    elif kind == 6:
        del changed[at:]
    else:
        to = pick.randrange(len(data))
        changed[at : at + length], changed[to : to + length] = data[to : to + length], data[at : at + length]
    return bytes(changed)


@pytest.mark.parametrize("name", ["plain", "sliding window", "m-rope", "q8_0"])
def test_damaged_rows_are_never_used(tmp_path: Path, name: str) -> None:
    layout, counts = LAYOUTS[name]
    rows = random_rows(layout, counts)
    path = tmp_path / "a.safetensors"
    written = write_artifact(path, meta_for(layout), rows)
    whole = path.read_bytes()
    pick = random.Random(name)
    messages: list[str] = []
    for _ in range(500):
        data = mutate(whole, pick)
        path.write_bytes(data)
        try:
            artifact = open_artifact(path)
        except ArtifactError as error:
            messages.append(str(error))
        else:
            assert artifact.meta == written
            assert same_rows(artifact.rows(), rows)
            assert data == whole
    assert len(messages) > 400
    assert all("compile it again" in message and message.isprintable() for message in messages)


def test_every_single_flipped_bit_of_the_header_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_state_artifact(path, META, b"state")
    whole = path.read_bytes()
    pick = random.Random(3)
    positions = [*range(8 * 8), *(pick.randrange(8 * len(whole)) for _ in range(600))]
    for bit in positions:
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(ArtifactError):
            open_artifact(path)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_state_artifact(path, META, bytes(40))
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ArtifactError):
            open_artifact(path)


def test_without_verification_the_structure_is_still_checked(tmp_path: Path) -> None:
    layout, counts = LAYOUTS["plain"]
    path = tmp_path / "a.safetensors"
    write_artifact(path, META, random_rows(layout, counts))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    assert np.array_equal(open_artifact(path, verify=False).rows().caches[0].pos, np.arange(20, 32))
    path.write_bytes(data[:-1])
    with pytest.raises(ArtifactError):
        open_artifact(path, verify=False)


def test_a_file_that_was_right_once_and_changed_in_place_is_noticed(tmp_path: Path) -> None:
    """Also where its size and its time of modification are what they were."""
    layout, counts = LAYOUTS["plain"]
    path = tmp_path / "a.safetensors"
    write_artifact(path, meta_for(layout), random_rows(layout, counts))
    open_artifact(path).close()
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ArtifactError, match="checksum"):
        open_artifact(path)
