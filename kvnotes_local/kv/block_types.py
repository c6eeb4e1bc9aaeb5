"""Look-up of tensor types, and the byte sizes that follow from them."""

from __future__ import annotations

# Importing these modules is what registers their types.
from kvnotes_local.kv import block_floats, block_linear, block_nonlinear  # noqa: F401
from kvnotes_local.kv.block_base import REGISTRY, BlockType
from kvnotes_local.kv.layout import GGMLType, TensorLayout

__all__ = ["BlockType", "block_type", "tensor_row_bytes"]


def block_type(type: GGMLType) -> BlockType:
    """The codec of a tensor type."""
    return REGISTRY[type]


def tensor_row_bytes(tensor: TensorLayout) -> int:
    """Bytes of one cell's row of ``tensor``. Raises LayoutError when the elements are no whole blocks."""
    return REGISTRY[tensor.type].row_bytes(tensor.n_embd)
