"""A layout as JSON, as artifacts keep it."""

from __future__ import annotations

from typing import Any

from kvnotes_local.errors import LayoutError
from kvnotes_local.kv.layout import CacheLayout, GGMLType, LayerLayout, StateLayout, TensorLayout

_MAX_EMBD = 1 << 24


def layout_to_json(layout: StateLayout) -> Any:
    """Lists, numbers and texts that ``layout_from_json`` reads."""
    return [
        {
            "layers": [[_tensor_to_json(layer.k), _tensor_to_json(layer.v)] for layer in cache.layers],
            "v_trans": cache.v_trans,
            "has_ext": cache.has_ext,
            "n_stream": cache.n_stream,
            "k_hadamard": cache.k_hadamard,
            "v_hadamard": cache.v_hadamard,
        }
        for cache in layout.caches
    ]


def _tensor_to_json(tensor: TensorLayout | None) -> Any:
    return None if tensor is None else [tensor.type.name, tensor.n_embd]


def layout_from_json(value: Any) -> StateLayout:
    """The layout that ``layout_to_json`` wrote. Raises LayoutError for anything else."""
    try:
        return StateLayout(tuple(_cache_from_json(one) for one in value))
    except (TypeError, KeyError, ValueError) as error:
        raise LayoutError(str(error)[:80]) from error


def _cache_from_json(value: Any) -> CacheLayout:
    if not isinstance(value, dict) or len(value) != 6:
        raise ValueError("a cache needs six keys")
    numbers = [value[key] for key in ("n_stream", "k_hadamard", "v_hadamard")]
    switches = [value[key] for key in ("v_trans", "has_ext")]
    if any(type(one) is not int or not 0 <= one <= 1 << 16 for one in numbers) or numbers[0] < 1:
        raise ValueError("a number of a cache is out of range")
    if any(type(one) is not bool for one in switches):
        raise ValueError("a switch of a cache is neither true nor false")
    layers = []
    for k, v in value["layers"]:
        keys = _tensor_from_json(k)
        if keys is None:
            raise ValueError("a layer has no keys")
        layers.append(LayerLayout(keys, _tensor_from_json(v)))
    return CacheLayout(tuple(layers), switches[0], switches[1], *numbers)


def _tensor_from_json(value: Any) -> TensorLayout | None:
    if value is None:
        return None
    type_name, n_embd = value
    if type(n_embd) is not int or not 0 < n_embd <= _MAX_EMBD:
        raise ValueError(f"a row of {n_embd} elements")
    return TensorLayout(GGMLType[type_name], n_embd)
