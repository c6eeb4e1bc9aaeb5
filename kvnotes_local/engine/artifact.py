"""The compiled KV of one skill for one model, as a safetensors file.

Tensors of a *rows* artifact: for each cache ``cacheN.pos`` (I32, n), with M-RoPE ``cacheN.ext`` (I32, n × 3), and for
each layer ``cacheN.layerM.k`` and, where the model caches values, ``.v``: F16 (n, n_embd), or U8 (n, row_bytes) for
block types. The caches of a sliding-window model may hold different numbers of cells. A *state* artifact has one
tensor, ``state``.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.engine.artifact_meta import (
    FORMAT_VERSION,
    ArtifactKind,
    ArtifactMeta,
    artifact_key,
    check_meta,
    meta_from_strings,
    meta_to_strings,
    text_sha256,
)
from kvnotes_local.engine.store_type import StoreType
from kvnotes_local.engine.tensor_file import (
    TensorHeader,
    TensorSpec,
    map_tensors,
    read_tensor_header,
    write_tensor_file,
)
from kvnotes_local.engine.turns import FieldSpan
from kvnotes_local.errors import ArtifactError, DiskFullError, LayoutError
from kvnotes_local.kv.block_types import tensor_row_bytes
from kvnotes_local.kv.layout import CacheLayout, CacheRows, GGMLType, StateLayout, StateRows, TensorLayout

__all__ = [
    "FORMAT_VERSION",
    "Artifact",
    "ArtifactKind",
    "ArtifactMeta",
    "FieldSpan",
    "StoreType",
    "artifact_key",
    "open_artifact",
    "read_artifact_meta",
    "text_sha256",
    "write_artifact",
    "write_state_artifact",
]

_STATE = "state"
_CHUNK_BYTES = 4 << 20
_NO_ROOM = frozenset(getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name))
"""The disk is full, the user's share of it is, or a limit on the size of files is met."""


@dataclass(frozen=True)
class Artifact:
    """An open artifact. ``rows`` and ``state`` are read-only views of the mapped file; they outlive ``close``."""

    path: Path
    meta: ArtifactMeta
    _views: dict[str, NDArray[np.uint8]]

    @property
    def is_state(self) -> bool:
        """Whether this is a whole sequence state, for a prefix-only model."""
        return self.meta.kind is ArtifactKind.STATE

    @property
    def n_bytes(self) -> int:
        """Bytes of keys, values and positions."""
        return sum(view.nbytes for view in self._views.values())

    def rows(self) -> StateRows:
        """Rows of all tokens, without copying.

        Raises:
            ArtifactError: this artifact is a whole state.
        """
        if self.meta.layout is None:
            raise _error(self.path, "holds a whole state and no rows to splice", self.meta.skill)
        caches = tuple(self._cache(number, layout) for number, layout in enumerate(self.meta.layout.caches))
        return StateRows(self.meta.layout, caches)

    def state(self) -> memoryview:
        """The bytes of the whole sequence state, without copying.

        Raises:
            ArtifactError: this artifact holds rows.
        """
        if not self.is_state:
            raise _error(self.path, "holds rows and no whole state", self.meta.skill)
        return self._views[_STATE].data

    def close(self) -> None:
        """Let go of the mapping; the file is unmapped as soon as no view of it is in use."""
        self._views.clear()

    def __enter__(self) -> Artifact:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cache(self, number: int, layout: CacheLayout) -> CacheRows:
        pos = self._views[f"cache{number}.pos"].view(np.dtype("<i4"))
        ext = self._views[f"cache{number}.ext"].view(np.dtype("<i4")).reshape(-1, 3) if layout.has_ext else None

        def rows(at: int, part: str, tensor: TensorLayout) -> NDArray[np.uint8]:
            return self._views[f"cache{number}.layer{at}.{part}"].reshape(len(pos), tensor_row_bytes(tensor))

        return CacheRows(
            pos=pos,
            ext=ext,
            k=tuple(rows(at, "k", layer.k) for at, layer in enumerate(layout.layers)),
            v=tuple(None if layer.v is None else rows(at, "v", layer.v) for at, layer in enumerate(layout.layers)),
        )


def write_artifact(path: Path, meta: ArtifactMeta, rows: StateRows) -> ArtifactMeta:
    """Write rows to ``path``, which appears only when complete; needs memory for one piece of one layer at most.

    Returns the metadata as written: with the rows' layout, and with the skill's and the model's names as one line.

    Raises:
        ArtifactError: the rows contradict their layout or ``meta``, or the file cannot be written.
    """
    meta = replace(_one_line(meta), kind=ArtifactKind.ROWS, layout=rows.layout, format_version=FORMAT_VERSION)
    arrays = _arrays(path, meta, rows)
    _write(path, meta, _specs(rows.layout, [len(cache.pos) for cache in rows.caches]), arrays)
    return meta


def write_state_artifact(path: Path, meta: ArtifactMeta, blob: bytes | bytearray | memoryview) -> ArtifactMeta:
    """Write a whole sequence state, as ``llama_state_seq_get_data`` gives it, as ``write_artifact`` does rows.

    Raises:
        ArtifactError: the blob is empty, or the file cannot be written.
    """
    meta = replace(_one_line(meta), kind=ArtifactKind.STATE, layout=None, format_version=FORMAT_VERSION)
    array = np.frombuffer(blob, dtype=np.uint8)
    if not array.nbytes:
        raise _error(path, "was to be written from an empty state", meta.skill)
    _write(path, meta, [TensorSpec(_STATE, "U8", (array.nbytes,))], {_STATE: array})
    return meta


def read_artifact_meta(path: Path) -> ArtifactMeta:
    """The metadata alone: only the header is read and checked.

    Raises:
        ArtifactError: the file is missing or damaged, or newer than this version; the message says what to do.
    """
    with _reading(path) as file:
        return _read_header(path, file)[1]


def open_artifact(
    path: Path,
    *,
    model_fingerprint: str | None = None,
    rotation: str | None = None,
    skill_sha256: str | None = None,
    layout: StateLayout | None = None,
    llama_cpp_version: str | None = None,
    verify: bool = True,
) -> Artifact:
    """Memory-map an artifact after checking all of it: structure, positions, checksums, and what is expected of it.

    Args:
        model_fingerprint: of the model in use.
        rotation: fingerprint of the rotation as measured on that model (does not matter to a whole state).
        skill_sha256: of the text as rendered now.
        layout: of the live context; types may differ, the shapes of rows may not.
        llama_cpp_version: in use now; only a whole state has to match it.
        verify: compare the checksums of keys and values (about half a millisecond per megabyte).

    Raises:
        ArtifactError: what is wrong or does not fit, and what to do about it.
    """
    with _reading(path) as file:
        header, meta = _read_header(path, file)
        _check_expected(path, meta, model_fingerprint, rotation, skill_sha256, llama_cpp_version)
        try:
            views = map_tensors(file, header, verify=verify)
        except ArtifactError as error:
            raise _error(path, str(error), meta.skill) from error
    artifact = Artifact(path, meta, views)
    if meta.layout is not None:
        _check_positions(path, meta, artifact.rows())
        if layout is not None:
            _check_layout(path, meta, meta.layout, layout)
    return artifact


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
        kind = DiskFullError if error.errno in _NO_ROOM else ArtifactError
        raise kind(
            f"{path} ({size / 1e6:.1f} MB) cannot be written ({error}); "
            "make room with 'kvnotes skills gc', or choose another --cache-dir"
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


def _specs(layout: StateLayout, counts: Iterable[int]) -> list[TensorSpec]:
    """Tensors of a rows artifact in file order; positions first, which keeps them aligned."""
    small: list[TensorSpec] = []
    large: list[TensorSpec] = []
    for number, (cache, n) in enumerate(zip(layout.caches, counts, strict=True)):
        small.append(TensorSpec(f"cache{number}.pos", "I32", (n,)))
        if cache.has_ext:
            small.append(TensorSpec(f"cache{number}.ext", "I32", (n, 3)))
        for at, layer in enumerate(cache.layers):
            large.append(_row_spec(f"cache{number}.layer{at}.k", n, layer.k))
            if layer.v is not None:
                large.append(_row_spec(f"cache{number}.layer{at}.v", n, layer.v))
    return small + large


def _row_spec(name: str, n: int, tensor: TensorLayout) -> TensorSpec:
    if tensor.type is GGMLType.F16:
        return TensorSpec(name, "F16", (n, tensor.n_embd))
    return TensorSpec(name, "U8", (n, tensor_row_bytes(tensor)))


def _arrays(path: Path, meta: ArtifactMeta, rows: StateRows) -> dict[str, NDArray[Any]]:
    """The arrays by tensor name, checked against the layout."""
    arrays: dict[str, NDArray[Any]] = {}
    broken = "was to be written from rows that do not fit their layout"
    if len(rows.caches) != len(rows.layout.caches):
        raise _error(path, broken, meta.skill)
    for number, (cache, layout) in enumerate(zip(rows.caches, rows.layout.caches, strict=True)):
        if not len(cache.k) == len(cache.v) == len(layout.layers):
            raise _error(path, broken, meta.skill)
        arrays[f"cache{number}.pos"] = cache.pos.astype("<i4", casting="safe", copy=False)
        if cache.ext is not None:
            arrays[f"cache{number}.ext"] = cache.ext.astype("<i4", casting="safe", copy=False)
        for at, (k, v) in enumerate(zip(cache.k, cache.v, strict=True)):
            arrays[f"cache{number}.layer{at}.k"] = k
            if v is not None:
                arrays[f"cache{number}.layer{at}.v"] = v
    try:
        specs = _specs(rows.layout, [len(cache.pos) for cache in rows.caches])
    except LayoutError as error:
        raise _error(path, f"{broken} ({error})", meta.skill) from error
    if {spec.name for spec in specs} != arrays.keys():
        raise _error(path, broken, meta.skill)
    for spec in specs:
        array = arrays[spec.name]
        wanted = spec.shape if spec.dtype == "I32" else (spec.shape[0], spec.n_bytes // max(spec.shape[0], 1))
        if array.dtype.itemsize != (4 if spec.dtype == "I32" else 1) or (array.shape != wanted and spec.n_bytes):
            raise _error(path, f"{broken} ({spec.name} has shape {array.shape} instead of {wanted})", meta.skill)
    _check_positions(path, meta, rows)
    return arrays


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    """The open file: header and data are read from the same one, whatever is renamed to its name meanwhile."""
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError as error:
        raise _error(path, "does not exist (any more)") from error
    except (OSError, ValueError) as error:
        raise _error(path, f"cannot be read ({error})") from error


def _read_header(path: Path, file: BinaryIO) -> tuple[TensorHeader, ArtifactMeta]:
    try:
        header = read_tensor_header(file)
        meta = meta_from_strings(header.metadata)
        _check_tensors(header, meta)
    except (ArtifactError, LayoutError) as error:
        raise _error(path, str(error)) from error
    return header, meta


def _check_tensors(header: TensorHeader, meta: ArtifactMeta) -> None:
    """Raise ArtifactError unless the tensors are those that the layout calls for."""
    if meta.layout is None:
        spec = header.tensors.get(_STATE)
        if len(header.tensors) != 1 or spec is None or spec.dtype != "U8" or not spec.n_bytes:
            raise ArtifactError("has other tensors than the one of a whole state")
        return
    counts = []
    for number in range(len(meta.layout.caches)):
        spec = header.tensors.get(f"cache{number}.pos")
        if spec is None or len(spec.shape) != 1 or spec.shape[0] > meta.n_tokens:
            raise ArtifactError(f"has no usable positions for cache {number}")
        counts.append(spec.shape[0])
    if not any(counts):
        raise ArtifactError("holds no rows at all")
    wanted = _specs(meta.layout, counts)
    if {spec.name: spec for spec in wanted} != header.tensors:
        raise ArtifactError("has tensors whose types or shapes do not fit its layout")


def _check_positions(path: Path, meta: ArtifactMeta, rows: StateRows) -> None:
    stop = meta.position_start + meta.n_tokens
    for number, cache in enumerate(rows.caches):
        pos = cache.pos.astype(np.int64)
        if len(pos) and (pos[0] < meta.position_start or pos[-1] >= stop or (np.diff(pos) <= 0).any()):
            what = f"has positions in cache {number} that do not ascend from {meta.position_start} to {stop - 1}"
            raise _error(path, what, meta.skill)


def _check_expected(
    path: Path,
    meta: ArtifactMeta,
    model_fingerprint: str | None,
    rotation: str | None,
    skill_sha256: str | None,
    llama_cpp_version: str | None,
) -> None:
    if model_fingerprint is not None and meta.model_fingerprint != model_fingerprint:
        raise _error(path, f"was compiled for another model ({meta.model_name}, {meta.model_arch})", meta.skill)
    if skill_sha256 is not None and meta.skill_sha256 != skill_sha256:
        raise _error(path, "was compiled from another text: the skill or a field has changed since", meta.skill)
    if not _is_state(meta):
        if rotation is not None and meta.rotation_fingerprint != rotation:
            raise _error(path, "was compiled under another rotation of keys than the model has now", meta.skill)
    elif llama_cpp_version is not None and meta.llama_cpp_version != llama_cpp_version:
        what = (
            f"is a whole state from llama.cpp {meta.llama_cpp_version}, which {llama_cpp_version} may read differently"
        )
        raise _error(path, what, meta.skill)


def _is_state(meta: ArtifactMeta) -> bool:
    return meta.kind is ArtifactKind.STATE


def _check_layout(path: Path, meta: ArtifactMeta, stored: StateLayout, live: StateLayout) -> None:
    def shape(layout: StateLayout) -> list[tuple[bool, list[tuple[int, int]]]]:
        return [
            (cache.has_ext, [(layer.k.n_embd, 0 if layer.v is None else layer.v.n_embd) for layer in cache.layers])
            for cache in layout.caches
        ]

    if shape(stored) != shape(live):
        raise _error(path, "has layers or rows of other sizes than the model's cache has now", meta.skill)


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


def _error(path: Path, what: str, skill: str | None = None) -> ArtifactError:
    # A file whose header cannot be trusted still has the skill's name in its own.
    name = skill or re.sub(r"-[0-9a-f]{16}$", "", path.stem)
    return ArtifactError(f"{path} {what}; compile it again with 'kvnotes skills compile {name}'")
