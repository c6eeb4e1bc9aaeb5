"""Records in JSON files: read without trust into the type that they have, written under a temporary name and renamed.

JSON itself is read and written by the standard library: a file name that is no text, which Linux allows, becomes a lone
surrogate there and comes back, where msgspec's own JSON refuses it. msgspec checks the types.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.small_file import MAX_BYTES, parse_json, read_small

T = TypeVar("T")

Finite = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""A number that is one: JSON as Python reads it has NaN and infinities, too."""

Count = Annotated[int, msgspec.Meta(ge=0)]


class Tagged(msgspec.Struct, frozen=True, tag=True, tag_field="is", forbid_unknown_fields=True):
    """A dataclass where one of several may stand: the name of its class is kept with it, under ``is``."""


def from_plain(kind: Any, data: Any) -> Any:
    """A value of a type that msgspec does not know. Raises TypeError for other types, and for other data."""
    if kind is Path and isinstance(data, str):
        return Path(data)
    raise TypeError(f"Expected {getattr(kind, '__name__', kind)}, got {type(data).__name__}")


def to_plain(value: Any) -> Any:
    """What ``from_plain`` makes ``value`` of. Raises TypeError for types that records do not have."""
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no type of records")


def as_type(data: Any, kind: type[T], hook: Callable[[Any, Any], Any] = from_plain) -> T:
    """``data`` as parsed from JSON or TOML, as a value of type ``kind``. ``hook``: makes values of types that msgspec does not
    know from plain ones. Raises ValueError, which begins with the key; the data's own checks raise what they raise."""
    try:
        return msgspec.convert(data, kind, dec_hook=hook)
    except msgspec.ValidationError as error:
        text, _, key = str(error).partition(" - at ")
        key = re.sub(r"^(key in )?\$\.?", "", key.strip("`"))
        raise ValueError(f"{key}: {text}" if key else text) from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def as_plain(value: Any) -> Any:
    """A value as lists, dictionaries, numbers and texts, which JSON can hold."""
    return msgspec.to_builtins(value, enc_hook=to_plain)


def read_record(path: Path, kind: type[T], max_bytes: int = MAX_BYTES) -> T:
    """The record in a file. Raises OSError as ``read_small``, and ValueError for anything that is not of the type."""
    return as_type(parse_json(read_small(path, max_bytes)), kind)


def write_record(path: Path, value: Any) -> None:
    """Replace the record in a file. Raises OSError."""
    write_atomically(path, json.dumps(as_plain(value), indent=1) + "\n")


@dataclass(frozen=True)
class CachedRecord(Generic[T]):
    """A record that only saves work: one that cannot be read or kept is found out again, and is no error.

    ``version``: what stands under ``format`` beside the record's own keys; None for records without.
    """

    path: Path
    kind: type[T]
    version: int | None = None
    max_bytes: int = MAX_BYTES

    def load(self) -> T | None:
        """None where there is none, or the file is damaged, of another version, too large, or no regular file."""
        try:
            data = read_record(self.path, Any, self.max_bytes)
            if self.version is not None and as_type(data, dict[str, Any]).get("format") != self.version:
                return None
            return as_type(data, self.kind)
        except (OSError, ValueError):
            return None

    def save(self, value: T) -> OSError | None:
        """Keep a value. Where that fails, as in a cache that is full or read-only, returns why."""
        plain = as_plain(value)
        try:
            write_record(self.path, plain if self.version is None else {"format": self.version, **plain})
        except OSError as error:
            return error
        return None
