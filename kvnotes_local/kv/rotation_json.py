"""Rotations as JSON, and a fingerprint that is equal for equal content."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from kvnotes_local.errors import RotationError
from kvnotes_local.kv.angles import AngleArithmetic, Fusion
from kvnotes_local.kv.rotation import LayerRotation, ModelRotation, Pairing

_VERSION = 1


def to_json(rotation: ModelRotation) -> str:
    """One line of JSON. Layers that rotate alike share one entry; floats survive unchanged."""
    entries: dict[str, int] = {}
    caches = [[entries.setdefault(layer_key(layer), len(entries)) for layer in cache] for cache in rotation.caches]
    content = {"version": _VERSION, "caches": caches, "rotations": [json.loads(entry) for entry in entries]}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def rotation_fingerprint(rotation: ModelRotation) -> str:
    """SHA-256 of the content, in hex."""
    return hashlib.sha256(to_json(rotation).encode()).hexdigest()


def layer_key(layer: LayerRotation) -> str:
    """A string that is equal for layers that rotate alike."""
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
    """The inverse of :func:`to_json`. Raises RotationError for anything else than a rotation of this version."""
    try:
        content = json.loads(text)
        if content["version"] != _VERSION:
            raise RotationError(f"rotation format {content['version']}, expected {_VERSION}; measure the model again")
        layers = [_layer(entry) for entry in content["rotations"]]
        caches = []
        for cache in content["caches"]:
            if any(not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < len(layers) for i in cache):
                raise RotationError("the stored rotation names a layer that it does not hold; measure the model again")
            caches.append(tuple(layers[i] for i in cache))
        return ModelRotation(tuple(caches))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
        raise RotationError(f"the stored rotation cannot be read ({error!r}); measure the model again") from error


def _layer(entry: dict[str, Any]) -> LayerRotation:
    arithmetic = entry["arithmetic"]
    return LayerRotation(
        n_head=_integer(entry["n_head"]),
        head_dim=_integer(entry["head_dim"]),
        offset=_integer(entry["offset"]),
        n_rot=_integer(entry["n_rot"]),
        pairing=Pairing(entry["pairing"]),
        frequencies=np.array(entry["frequencies"], dtype=np.float64),
        arithmetic=None if arithmetic is None else _arithmetic(arithmetic),
    )


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no integer")
    return value


def _arithmetic(entry: dict[str, Any]) -> AngleArithmetic:
    def numbers(name: str) -> Any:
        return None if entry[name] is None else np.array(entry[name], dtype=np.float32)

    turning = entry["turning"]
    return AngleArithmetic(
        theta_scale=float(entry["theta_scale"]),
        freq_scale=float(entry["freq_scale"]),
        freq_factors=numbers("freq_factors"),
        ramp_mix=numbers("ramp_mix"),
        turning=None if turning is None else np.array(turning, dtype=np.bool_),
        fusion=Fusion(entry["fusion"]),
    )
