"""Typed values as JSON and back: what the engine's messages carry. Nothing is unpickled, and every value is checked.

A dataclass becomes an object with its class under ``"is"``; a float32 array becomes its shape, and its bytes go behind the JSON.
Decoding is led by the type that is expected, never by what the data says about itself.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Sequence
from enum import Enum
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from kvnotes_local import errors
from kvnotes_local.errors import EngineError, KvnotesError


class WireError(EngineError):
    """Bytes or values between kvnotes and its engine process are not what was agreed."""


def to_wire(value: Any, raw: list[memoryview]) -> Any:
    """``value`` as something that ``json`` writes; arrays are appended to ``raw``. Raises WireError for other types."""
    if value is None or (isinstance(value, (bool, str)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value, np.dtype("<f4"))
        raw.append(array.reshape(-1).view(np.uint8).data)
        return {"is": "f32", "shape": list(array.shape)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_wire(getattr(value, field.name), raw) for field in dataclasses.fields(value)}
        return {"is": type(value).__name__, **fields}
    if isinstance(value, KvnotesError):
        return {"is": "error", "kind": _public_name(value), "message": str(value)}
    if isinstance(value, (list, tuple)):
        return [to_wire(item, raw) for item in value]
    raise WireError(f"{type(value).__name__} cannot be sent to the engine process.")


def from_wire(kind: Any, data: Any, raw: memoryview) -> Any:
    """The value of type ``kind`` that ``data`` stands for; ``raw``: bytes of the arrays. Raises WireError.

    At most one array can be in a message.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _one_of(arguments, data, raw)
    if origin is np.ndarray:
        return _array(data, raw)
    if kind is type(None) and data is None:
        return None
    if origin in (tuple, list, Sequence):
        if not isinstance(data, list):
            raise _unexpected(kind, data)
        if origin is tuple and not (len(arguments) == 2 and arguments[1] is ...):
            if len(data) != len(arguments):
                raise _unexpected(kind, data)
            return tuple(from_wire(inner, item, raw) for inner, item in zip(arguments, data, strict=True))
        items = _ints(data) if arguments[0] is int else [from_wire(arguments[0], item, raw) for item in data]
        return items if origin is list else tuple(items)
    if not isinstance(kind, type):
        raise WireError(f"{kind} is no type that messages carry.")
    if dataclasses.is_dataclass(kind):
        return _record(kind, data, raw)
    if issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            raise _unexpected(kind, data) from None
    if issubclass(kind, KvnotesError):
        return _exception(data)
    if kind is Path and isinstance(data, str):
        return Path(data)
    if kind is float and type(data) in (int, float):
        return float(data)
    if kind in (bool, int, str) and type(data) is kind:
        return data
    raise _unexpected(kind, data)


def _one_of(kinds: Sequence[Any], data: Any, raw: memoryview) -> Any:
    if data is None and type(None) in kinds:
        return None
    named = data.get("is") if isinstance(data, dict) else None
    for kind in kinds:
        if dataclasses.is_dataclass(kind):
            if named == kind.__name__:  # type: ignore[union-attr]
                return from_wire(kind, data, raw)
        elif kind is not type(None):
            try:
                return from_wire(kind, data, raw)
            except WireError:
                continue
    raise _unexpected(Union[tuple(kinds)], data)  # noqa: UP007 (made from a list)


def _record(kind: type, data: Any, raw: memoryview) -> Any:
    hints = _fields(kind)
    if not isinstance(data, dict) or data.get("is") != kind.__name__ or data.keys() - {"is"} != hints.keys():
        raise _unexpected(kind, data)
    return kind(**{name: from_wire(hint, data[name], raw) for name, hint in hints.items()})


@cache
def _fields(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _public_name(error: KvnotesError) -> str:
    """The nearest class of the exception that both sides know."""
    names: list[str] = [kind.__name__ for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind]
    return names[0]


def _exception(data: Any) -> KvnotesError:
    if not isinstance(data, dict) or data.get("is") != "error" or not isinstance(data.get("message"), str):
        raise _unexpected(KvnotesError, data)
    kind = getattr(errors, str(data.get("kind")), None)
    if not (isinstance(kind, type) and issubclass(kind, KvnotesError)):
        raise _unexpected(KvnotesError, data)
    return kind(data["message"])


def _ints(data: list[Any]) -> list[int]:
    if not all(type(item) is int for item in data):
        raise _unexpected("integers", data)
    return data


def _array(data: Any, raw: memoryview) -> np.ndarray[Any, np.dtype[np.float32]]:
    shape = data.get("shape") if isinstance(data, dict) and data.get("is") == "f32" else None
    if not isinstance(shape, list) or len(shape) > 2 or not all(type(n) is int and n >= 0 for n in shape):
        raise _unexpected("an array", data)
    if prod(shape) * 4 != raw.nbytes:
        raise WireError(f"An array of shape {shape} came with {raw.nbytes:,} bytes.")
    return np.frombuffer(raw, np.dtype("<f4")).astype(np.float32, copy=True).reshape(shape)


def _unexpected(kind: Any, data: Any) -> WireError:
    name = getattr(kind, "__name__", str(kind))
    return WireError(f"{name} was expected in a message, not {str(data)[:80]!r}.")
