"""Measured rotations as JSON, and a fingerprint that is equal for equal content."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.errors import RotationError
from kvnotes_local.kv.angles import AngleArithmetic
from kvnotes_local.kv.rotation import LayerRotation, ModelRotation
from kvnotes_local.records import Count, as_type
from kvnotes_local.small_file import parse_json

_VERSION = 1


@dataclass(frozen=True, eq=False)
class _Stored:
    version: Literal[1]
    caches: tuple[tuple[Count, ...], ...]
    rotations: tuple[LayerRotation, ...]


def to_json(rotation: ModelRotation) -> str:
    """One line of JSON. Layers that rotate alike share one entry; floats survive unchanged."""
    entries: dict[str, int] = {}
    caches = [[entries.setdefault(_layer_json(layer), len(entries)) for layer in cache] for cache in rotation.caches]
    content = {"version": _VERSION, "caches": caches, "rotations": [json.loads(entry) for entry in entries]}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def rotation_fingerprint(rotation: ModelRotation) -> str:
    """SHA-256 of the content, in hex."""
    return hashlib.sha256(to_json(rotation).encode()).hexdigest()


def _layer_json(layer: LayerRotation) -> str:
    arithmetic = layer.arithmetic
    content: dict[str, Any] = {
        "n_head": int(layer.n_head),
        "head_dim": int(layer.head_dim),
        "offset": int(layer.offset),
        "n_rot": int(layer.n_rot),
        "pairing": layer.pairing.value,
        # Adding 0.0 turns -0.0, which rotates the same, into 0.0.
        "frequencies": [float(f) + 0.0 for f in layer.frequencies],
        "arithmetic": None if arithmetic is None else _arithmetic_content(arithmetic),
    }
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _arithmetic_content(arithmetic: AngleArithmetic) -> dict[str, Any]:
    def numbers(array: Any) -> list[float] | None:
        return None if array is None else [float(np.float32(x)) + 0.0 for x in array]

    return {
        "theta_scale": float(np.float32(arithmetic.theta_scale)),
        "freq_scale": float(np.float32(arithmetic.freq_scale)),
        "freq_factors": numbers(arithmetic.freq_factors),
        "ramp_mix": numbers(arithmetic.ramp_mix),
        "turning": None if arithmetic.turning is None else [bool(x) for x in arithmetic.turning],
        "fusion": arithmetic.fusion.value,
    }


def from_json(text: str) -> ModelRotation:
    """The inverse of :func:`to_json`. Raises RotationError for anything else than what that writes."""
    try:
        stored = as_type(parse_json(text), _Stored, _array)
        rotation = ModelRotation(tuple(tuple(stored.rotations[i] for i in cache) for cache in stored.caches))
    except (ValueError, IndexError) as error:
        raise RotationError(f"the stored rotation cannot be read ({error}); measure the model again") from error
    if to_json(rotation) != text:  # a name that was damaged would else pass for one that was left out
        raise RotationError("the stored rotation says more or less than a rotation does; measure the model again")
    return rotation


def _array(kind: Any, data: Any) -> NDArray[Any]:
    """An array where one is expected, as in ``NDArray[np.float64]``."""
    dtype = get_args(get_args(kind)[1])[0]
    values = as_type(data, list[bool]) if dtype is np.bool_ else as_type(data, list[float])
    return np.array(values, dtype)
