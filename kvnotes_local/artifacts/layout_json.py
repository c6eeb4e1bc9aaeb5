"""A layout as JSON, as artifacts keep it."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from kvnotes_local.errors import LayoutError
from kvnotes_local.kv.layout import CacheLayout, GGMLType, LayerLayout, StateLayout, TensorLayout
from kvnotes_local.records import as_type

_Tensor = tuple[str, Annotated[int, Meta(gt=0, le=1 << 24)]]
_BlockLength = Annotated[int, Meta(ge=0, le=1 << 16)]


class _Cache(Struct, forbid_unknown_fields=True):
    """A CacheLayout, with its tensors as pairs of a type's name and a row's length."""

    layers: list[tuple[_Tensor, _Tensor | None]]
    v_trans: bool
    has_ext: bool
    n_stream: Annotated[int, Meta(ge=1, le=1 << 16)]
    k_hadamard: _BlockLength
    v_hadamard: _BlockLength


def layout_to_json(layout: StateLayout) -> Any:
    """Lists, numbers and texts that ``layout_from_json`` reads."""
    return [
        {**vars(cache), "layers": [[_pair(layer.k), layer.v and _pair(layer.v)] for layer in cache.layers]}
        for cache in layout.caches
    ]


def layout_from_json(value: Any) -> StateLayout:
    """The layout that ``layout_to_json`` wrote. Raises LayoutError for anything else."""
    try:
        return StateLayout(tuple(map(_cache, as_type(value, list[_Cache]))))
    except (KeyError, ValueError) as error:
        raise LayoutError(str(error)[:80]) from error


def _cache(cache: _Cache) -> CacheLayout:
    layers = tuple(LayerLayout(_tensor(k), None if v is None else _tensor(v)) for k, v in cache.layers)
    return CacheLayout(**{**structs.asdict(cache), "layers": layers})


def _pair(tensor: TensorLayout) -> list[Any]:
    return [tensor.type.name, tensor.n_embd]


def _tensor(pair: _Tensor) -> TensorLayout:
    return TensorLayout(GGMLType[pair[0]], pair[1])
