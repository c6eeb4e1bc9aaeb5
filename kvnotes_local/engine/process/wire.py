"""Typed values as JSON and back: what the engine's messages carry. Nothing is unpickled, and every value is checked.

Decoding is led by the type that is expected, never by what the data says about itself; where one of several is expected, they
are ``Tagged``. A float32 array becomes its shape, and its bytes go behind the JSON.
"""

from __future__ import annotations

from math import prod
from typing import Annotated, Any, NamedTuple, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvnotes_local import errors
from kvnotes_local.errors import EngineError, KvnotesError
from kvnotes_local.records import Count, as_type, from_plain, to_plain


class WireError(EngineError):
    """Bytes or values between kvnotes and its engine process are not what was agreed."""


class _Array(NamedTuple):
    shape: Annotated[list[Count], msgspec.Meta(max_length=2)]


class _Error(NamedTuple):
    kind: str
    message: str


def to_wire(value: Any, raw: list[memoryview]) -> Any:
    """``value`` as something that ``json`` writes; arrays are appended to ``raw``. Raises WireError for other types."""

    def special(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            array = np.ascontiguousarray(value, np.dtype("<f4"))
            raw.append(array.reshape(-1).view(np.uint8).data)
            return _Array(list(array.shape))
        if isinstance(value, KvnotesError):
            return _Error(_public_name(value), str(value))
        if isinstance(value, float):
            return float(value)  # numpy's are of a class of their own
        return to_plain(value)

    try:
        return msgspec.to_builtins(value, enc_hook=special)
    except TypeError as error:
        raise WireError(f"{type(value).__name__} cannot be sent to the engine process: {error}.") from error


def from_wire(kind: Any, data: Any, raw: memoryview) -> Any:
    """The value of type ``kind`` that ``data`` stands for; ``raw``: bytes of the arrays. Raises WireError.

    At most one array can be in a message.
    """

    def special(kind: Any, data: Any) -> Any:
        if get_origin(kind) is np.ndarray:
            return _array(as_type(data, _Array).shape, raw)
        if isinstance(kind, type) and issubclass(kind, KvnotesError):
            return _exception(as_type(data, _Error))
        return from_plain(kind, data)

    try:
        return as_type(data, kind, special)
    except ValueError as error:
        name = getattr(kind, "__name__", str(kind))
        raise WireError(f"{name} was expected in a message, not {str(data)[:80]!r} ({error}).") from error


def _public_name(error: KvnotesError) -> str:
    """The nearest class of the exception that both sides know."""
    names: list[str] = [kind.__name__ for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind]
    return names[0]


def _exception(data: _Error) -> KvnotesError:
    kind = getattr(errors, data.kind, None)
    if isinstance(kind, type) and issubclass(kind, KvnotesError):
        return kind(data.message)
    raise ValueError(f"{data.kind[:80]!r} is no error")


def _array(shape: list[int], raw: memoryview) -> NDArray[np.float32]:
    if prod(shape) * 4 != raw.nbytes:
        raise ValueError(f"an array of shape {shape} came with {raw.nbytes:,} bytes")
    return np.frombuffer(raw, np.dtype("<f4")).astype(np.float32, copy=True).reshape(shape)
