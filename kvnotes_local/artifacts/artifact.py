"""The compiled KV of one skill for one model, as a safetensors file.

Tensors of a *rows* artifact: for each cache ``cacheN.pos`` (I32, n), with M-RoPE ``cacheN.ext`` (I32, n × 3), and for
each layer ``cacheN.layerM.k`` and, where the model caches values, ``.v``: F16 (n, n_embd), or U8 (n, row_bytes) for
block types. The caches of a sliding-window model may hold different numbers of cells. A *state* artifact has one
tensor, ``state``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.artifacts.meta import (
    FORMAT_VERSION,
    ArtifactKind,
    ArtifactMeta,
    artifact_key,
    meta_from_strings,
    text_sha256,
)
from kvnotes_local.artifacts.tensor_file import (
    FileIdentity,
    TensorHeader,
    TensorSpec,
    file_identity,
    map_tensors,
    read_tensor_header,
)
from kvnotes_local.chat_format.turns import FieldSpan
from kvnotes_local.contract.store_type import StoreType
from kvnotes_local.errors import ArtifactError, LayoutError, OtherVersionError
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
]

STATE_TENSOR = "state"


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
            raise artifact_error(self.path, "holds a whole state and no rows to splice", self.meta.skill)
        caches = tuple(self._cache(number, layout) for number, layout in enumerate(self.meta.layout.caches))
        return StateRows(self.meta.layout, caches)

    def state(self) -> memoryview:
        """The bytes of the whole sequence state, without copying.

        Raises:
            ArtifactError: this artifact holds rows.
        """
        if not self.is_state:
            raise artifact_error(self.path, "holds rows and no whole state", self.meta.skill)
        return self._views[STATE_TENSOR].data

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


def read_artifact_meta(path: Path) -> ArtifactMeta:
    """The metadata alone: only the header is read and checked.

    Raises:
        ArtifactError: the file is missing or damaged (OtherVersionError: of another version); the message says what to do.
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
            raise artifact_error(path, str(error), meta.skill) from error
    artifact = Artifact(path, meta, views)
    if meta.layout is not None:
        check_positions(path, meta, artifact.rows())
        if layout is not None:
            _check_layout(path, meta, meta.layout, layout)
    return artifact


def tensor_specs(layout: StateLayout, counts: Iterable[int]) -> list[TensorSpec]:
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


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    """The open file: header and data are read from the same one, whatever is renamed to its name meanwhile."""
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError as error:
        raise artifact_error(path, "does not exist (any more)") from error
    except (OSError, ValueError) as error:
        raise artifact_error(path, f"cannot be read ({error})") from error


_MAX_HEADERS = 64
_HEADERS: dict[FileIdentity, tuple[TensorHeader, ArtifactMeta]] = {}
"""Headers that were read and checked in this process: a splice looks its artifact up and opens it right after."""


def _read_header(path: Path, file: BinaryIO) -> tuple[TensorHeader, ArtifactMeta]:
    identity = file_identity(file)
    known = _HEADERS.get(identity)
    if known is not None:
        return known
    try:
        header = read_tensor_header(file)
        meta = meta_from_strings(header.metadata)
        _check_tensors(header, meta)
    except OtherVersionError as error:
        raise OtherVersionError(str(artifact_error(path, str(error))), error.model_name) from error
    except (ArtifactError, LayoutError) as error:
        raise artifact_error(path, str(error)) from error
    if len(_HEADERS) >= _MAX_HEADERS:
        _HEADERS.clear()
    _HEADERS[identity] = header, meta
    return header, meta


def _check_tensors(header: TensorHeader, meta: ArtifactMeta) -> None:
    """Raise ArtifactError unless the tensors are those that the layout calls for."""
    if meta.layout is None:
        spec = header.tensors.get(STATE_TENSOR)
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
    wanted = tensor_specs(meta.layout, counts)
    if {spec.name: spec for spec in wanted} != header.tensors:
        raise ArtifactError("has tensors whose types or shapes do not fit its layout")


def check_positions(path: Path, meta: ArtifactMeta, rows: StateRows) -> None:
    stop = meta.position_start + meta.n_tokens
    for number, cache in enumerate(rows.caches):
        pos = cache.pos.astype(np.int64)
        if len(pos) and (pos[0] < meta.position_start or pos[-1] >= stop or (np.diff(pos) <= 0).any()):
            what = f"has positions in cache {number} that do not ascend from {meta.position_start} to {stop - 1}"
            raise artifact_error(path, what, meta.skill)


def _check_expected(
    path: Path,
    meta: ArtifactMeta,
    model_fingerprint: str | None,
    rotation: str | None,
    skill_sha256: str | None,
    llama_cpp_version: str | None,
) -> None:
    if model_fingerprint is not None and meta.model_fingerprint != model_fingerprint:
        raise artifact_error(path, f"was compiled for another model ({meta.model_name}, {meta.model_arch})", meta.skill)
    if skill_sha256 is not None and meta.skill_sha256 != skill_sha256:
        raise artifact_error(path, "was compiled from another text: the skill or a field has changed since", meta.skill)
    if not _is_state(meta):
        if rotation is not None and meta.rotation_fingerprint != rotation:
            raise artifact_error(path, "was compiled under another rotation of keys than the model has now", meta.skill)
    elif llama_cpp_version is not None and meta.llama_cpp_version != llama_cpp_version:
        what = (
            f"is a whole state from llama.cpp {meta.llama_cpp_version}, which {llama_cpp_version} may read differently"
        )
        raise artifact_error(path, what, meta.skill)


def _is_state(meta: ArtifactMeta) -> bool:
    return meta.kind is ArtifactKind.STATE


def _check_layout(path: Path, meta: ArtifactMeta, stored: StateLayout, live: StateLayout) -> None:
    def shape(layout: StateLayout) -> list[tuple[bool, list[tuple[int, int]]]]:
        return [
            (cache.has_ext, [(layer.k.n_embd, 0 if layer.v is None else layer.v.n_embd) for layer in cache.layers])
            for cache in layout.caches
        ]

    if shape(stored) != shape(live):
        raise artifact_error(path, "has layers or rows of other sizes than the model's cache has now", meta.skill)


def artifact_error(path: Path, what: str, skill: str | None = None) -> ArtifactError:
    # A file whose header cannot be trusted still has the skill's name in its own.
    name = skill or re.sub(r"-[0-9a-f]{16}$", "", path.stem)
    return ArtifactError(f"{path} {what}; compile it again with 'kvnotes skills compile {name}'")
