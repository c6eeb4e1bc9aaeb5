"""Records in files: what comes back is of its type, and a record that only saves work is never in the way."""

from __future__ import annotations

import errno
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvnotes_local.records import CachedRecord, Count, Finite, as_plain, as_type, read_record


@dataclass(frozen=True)
class Place:
    path: Path
    height: Finite = 0.0


@dataclass(frozen=True)
class Trip:
    places: tuple[Place, ...]
    days: Count


TRIP = Trip((Place(Path("/a/caf\udce9"), 1.5), Place(Path("b"))), 3)


def test_what_is_saved_is_loaded_also_a_path_that_is_no_text(tmp_path: Path) -> None:
    record = CachedRecord(tmp_path / "made" / "trip.json", Trip)
    assert record.load() is None
    assert record.save(TRIP) is None
    assert record.load() == TRIP
    assert CachedRecord(record.path, Trip, version=1).load() is None
    assert [path.name for path in record.path.parent.iterdir()] == ["trip.json"]


def test_a_record_of_another_version_is_none(tmp_path: Path) -> None:
    record = CachedRecord(tmp_path / "trip.json", Trip, version=1)
    record.save(TRIP)
    assert record.load() == TRIP
    assert CachedRecord(record.path, Trip, version=2).load() is None
    record.path.write_text("[1]")
    assert record.load() is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"days": -1}, "days: Expected `int` >= 0"),
        ({"days": True}, "days: Expected `int`, got `bool`"),
        ({"days": 1.0}, "days: Expected `int`, got `float`"),
        ({"places": [{"path": "a", "height": float("nan")}]}, "places[0].height: Expected `float`"),
        ({"places": [{"path": "a", "height": float("inf")}]}, "places[0].height: Expected `float`"),
        ({"places": [{"path": 5}]}, "places[0].path: Expected Path, got int"),
        ({"places": [{}]}, "places[0]: Object missing required field `path`"),
    ],
)
def test_what_is_of_another_type_is_named_with_its_key(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        as_type({**as_plain(TRIP), **change}, Trip)


def test_a_record_larger_than_allowed_is_not_read(tmp_path: Path) -> None:
    record = CachedRecord(tmp_path / "trip.json", Trip, max_bytes=20)
    record.save(TRIP)
    assert record.load() is None
    with pytest.raises(OSError, match="larger"):
        read_record(record.path, Trip, max_bytes=20)


def test_where_nothing_can_be_written_saving_says_why_and_leaves_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    error = CachedRecord(tmp_path / "file" / "trip.json", Trip).save(TRIP)
    assert error is not None
    assert error.errno in {errno.ENOTDIR, errno.EEXIST}
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of POSIX systems")
def test_where_there_is_no_room_the_record_before_stays(tmp_path: Path) -> None:
    import resource

    record = CachedRecord(tmp_path / "trip.json", Trip)
    record.save(TRIP)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        error = record.save(Trip((), 0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error is not None
    assert error.errno == errno.EFBIG
    assert record.load() == TRIP
    assert [path.name for path in tmp_path.iterdir()] == ["trip.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes as files")
def test_a_pipe_is_not_waited_for_and_makes_room_for_a_record(tmp_path: Path) -> None:
    record = CachedRecord(tmp_path / "trip.json", Trip)
    os.mkfifo(record.path)
    assert record.load() is None
    record.save(TRIP)
    assert record.load() == TRIP
