"""Writing artifacts: rows or a whole state, checked against their metadata, under their name only when complete."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.artifacts.artifact import STATE_TENSOR, artifact_error, check_positions, open_artifact, tensor_specs
from kvnotes_local.artifacts.meta import (
    FORMAT_VERSION,
    ArtifactKind,
    ArtifactMeta,
    check_meta,
    meta_to_strings,
)
from kvnotes_local.artifacts.tensor_file import TensorSpec, write_tensor_file
from kvnotes_local.errors import ArtifactError, DiskFullError, LayoutError
from kvnotes_local.kv.layout import StateRows

_CHUNK_BYTES = 4 << 20
NO_ROOM = frozenset(getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name))
"""The disk is full, the user's share of it is, or a limit on the size of files is met."""


def write_artifact(path: Path, meta: ArtifactMeta, rows: StateRows) -> ArtifactMeta:
    """Write rows to ``path``, which appears only when complete; needs memory for one piece of one layer at most.

    Returns the metadata as written: with the rows' layout, and with the skill's and the model's names as one line.

    Raises:
        ArtifactError: the rows contradict their layout or ``meta``, or the file cannot be written.
    """
    meta = replace(_one_line(meta), kind=ArtifactKind.ROWS, layout=rows.layout, format_version=FORMAT_VERSION)
    arrays = _arrays(path, meta, rows)
    _write(path, meta, tensor_specs(rows.layout, [len(cache.pos) for cache in rows.caches]), arrays)
    return meta


def write_state_artifact(path: Path, meta: ArtifactMeta, blob: bytes | bytearray | memoryview) -> ArtifactMeta:
    """Write a whole sequence state, as ``llama_state_seq_get_data`` gives it, as ``write_artifact`` does rows.

    Raises:
        ArtifactError: the blob is empty, or the file cannot be written.
    """
    meta = replace(_one_line(meta), kind=ArtifactKind.STATE, layout=None, format_version=FORMAT_VERSION)
    array = np.frombuffer(blob, dtype=np.uint8)
    if not array.nbytes:
        raise artifact_error(path, "was to be written from an empty state", meta.skill)
    _write(path, meta, [TensorSpec(STATE_TENSOR, "U8", (array.nbytes,))], {STATE_TENSOR: array})
    return meta


def _write(path: Path, meta: ArtifactMeta, specs: list[TensorSpec], arrays: dict[str, NDArray[Any]]) -> None:
    try:
        check_meta(meta)
        write_tensor_file(path, specs, meta_to_strings(meta), lambda spec: _pieces(arrays[spec.name]))
    except ArtifactError as error:
        raise ArtifactError(
            f"artifact of {meta.skill} {error}; this is a mistake in the compiler, please report it"
        ) from error
    except PermissionError as error:
        # Windows does not replace a file that is mapped somewhere. Names contain the key: what is there may do as well.
        if not _is_same(path, meta):
            raise ArtifactError(
                f"{path} cannot be written ({error}); check the rights of its folder, or choose another --cache-dir"
            ) from error
    except OSError as error:
        size = sum(spec.n_bytes for spec in specs)
        full = error.errno in NO_ROOM
        cure = "make room with 'kvnotes skills gc'" if full else "check its rights and its disk"
        raise (DiskFullError if full else ArtifactError)(
            f"{path} ({size / 1e6:.1f} MB) cannot be written ({error.strerror or error}); {cure}, or choose another --cache-dir"
        ) from error


def _is_same(path: Path, meta: ArtifactMeta) -> bool:
    try:
        with open_artifact(path) as there:
            return replace(there.meta, created=meta.created) == meta
    except ArtifactError:
        return False


def _pieces(array: NDArray[Any]) -> Iterator[memoryview]:
    """The array's bytes, some rows at a time: it may be a strided view, and a whole copy may not fit."""
    if not array.size:
        return
    step = max(1, _CHUNK_BYTES // (array.nbytes // len(array)))
    for at in range(0, len(array), step):
        yield np.ascontiguousarray(array[at : at + step]).reshape(-1).view(np.uint8).data


def _arrays(path: Path, meta: ArtifactMeta, rows: StateRows) -> dict[str, NDArray[Any]]:
    """The arrays by tensor name, checked against the layout."""
    arrays: dict[str, NDArray[Any]] = {}
    broken = "was to be written from rows that do not fit their layout"
    if len(rows.caches) != len(rows.layout.caches):
        raise artifact_error(path, broken, meta.skill)
    for number, (cache, layout) in enumerate(zip(rows.caches, rows.layout.caches, strict=True)):
        if not len(cache.k) == len(cache.v) == len(layout.layers):
            raise artifact_error(path, broken, meta.skill)
        arrays[f"cache{number}.pos"] = cache.pos.astype("<i4", casting="safe", copy=False)
        if cache.ext is not None:
            arrays[f"cache{number}.ext"] = cache.ext.astype("<i4", casting="safe", copy=False)
        for at, (k, v) in enumerate(zip(cache.k, cache.v, strict=True)):
            arrays[f"cache{number}.layer{at}.k"] = k
            if v is not None:
                arrays[f"cache{number}.layer{at}.v"] = v
    try:
        specs = tensor_specs(rows.layout, [len(cache.pos) for cache in rows.caches])
    except LayoutError as error:
        raise artifact_error(path, f"{broken} ({error})", meta.skill) from error
    if {spec.name for spec in specs} != arrays.keys():
        raise artifact_error(path, broken, meta.skill)
    for spec in specs:
        array = arrays[spec.name]
        wanted = spec.shape if spec.dtype == "I32" else (spec.shape[0], spec.n_bytes // max(spec.shape[0], 1))
        if array.dtype.itemsize != (4 if spec.dtype == "I32" else 1) or (array.shape != wanted and spec.n_bytes):
            raise artifact_error(
                path, f"{broken} ({spec.name} has shape {array.shape} instead of {wanted})", meta.skill
            )
    check_positions(path, meta, rows)
    return arrays


def _one_line(meta: ArtifactMeta) -> ArtifactMeta:
    def line(text: str) -> str:
        return " ".join("".join(char if char.isprintable() else " " for char in text).split())

    return replace(
        meta,
        skill=line(meta.skill),
        model_name=line(meta.model_name),
        model_arch=line(meta.model_arch),
        origin=line(meta.origin),
    )
