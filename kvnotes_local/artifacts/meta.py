"""What an artifact says about itself: provenance, tokens, and the layout of its rows."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvnotes_local.chat_format.turns import FieldSpan
from kvnotes_local.contract.store_type import StoreType
from kvnotes_local.errors import ArtifactError, LayoutError, OtherVersionError
from kvnotes_local.kv.layout import GGMLType, StateLayout
from kvnotes_local.kv.layout_json import layout_from_json, layout_to_json
from kvnotes_local.spelling import composed

FORMAT = "kvnotes-artifact"
FORMAT_VERSION = 1
_ROWS_CHANGED_IN = ("0.3.36",)
"""Releases of llama-cpp-python from which on rows came out otherwise, ascending. The first is the oldest that was checked;
add one when the fidelity tests show that a new release computes other rows."""
_MAX_POSITION = 2**31 - 1


class ArtifactKind(StrEnum):
    """ROWS: keys and values per token, to be moved anywhere. STATE: one opaque sequence state."""

    ROWS = "rows"
    STATE = "state"


@dataclass(frozen=True)
class ArtifactMeta:
    """Provenance of one artifact.

    ``tokens[i]`` was computed at position ``position_start + i``. ``skill_sha256``: of the rendered text (UTF-8).
    ``lead`` and ``wrapper`` describe what stood before and around it. ``created``: ISO 8601 time. ``layout``: how the
    rows lie in the file, None for a state. ``origin``: where an imported artifact came from, "" for one that was made here.
    Writing sets ``kind``, ``layout`` and ``format_version``.
    """

    skill: str
    skill_sha256: str
    model_fingerprint: str
    model_name: str
    model_arch: str
    tokens: tuple[int, ...]
    position_start: int
    lead: str
    wrapper: str
    rotation_fingerprint: str
    store: StoreType
    llama_cpp_version: str
    created: str
    fields: tuple[FieldSpan, ...] = ()
    origin: str = ""
    kind: ArtifactKind = ArtifactKind.ROWS
    layout: StateLayout | None = None
    format_version: int = FORMAT_VERSION

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def key(self) -> str:
        """What ``artifact_key`` gives for this artifact."""
        return artifact_key(
            skill_sha256=self.skill_sha256,
            model_fingerprint=self.model_fingerprint,
            wrapper=self.wrapper,
            lead=self.lead,
            rotation_fingerprint=self.rotation_fingerprint,
            store=self.store,
            llama_cpp_version=self.llama_cpp_version,
            kind=self.kind,
            format_version=self.format_version,
        )


def text_sha256(text: str) -> str:
    """Hex digest of a rendered skill text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def artifact_key(
    *,
    skill_sha256: str,
    model_fingerprint: str,
    wrapper: str,
    lead: str,
    rotation_fingerprint: str,
    store: StoreType,
    llama_cpp_version: str,
    kind: ArtifactKind = ArtifactKind.ROWS,
    format_version: int = FORMAT_VERSION,
) -> str:
    """64 hex digits that change whenever anything changes that the rows depend on."""
    if kind is ArtifactKind.ROWS:
        llama_cpp_version = rows_version(llama_cpp_version)  # whole states are read back by the same release only
    parts = [
        skill_sha256,
        model_fingerprint,
        wrapper,
        lead,
        rotation_fingerprint,
        str(store),
        llama_cpp_version,
        str(kind),
        str(format_version),
    ]
    return hashlib.sha256(json.dumps(parts).encode("ascii")).hexdigest()


def rows_version(llama_cpp_version: str) -> str:
    """The release since which rows have been computed as by this one: artifacts stay valid within such a range."""

    def order(version: str) -> tuple[int, ...] | None:
        parts = version.split(".")
        return tuple(map(int, parts)) if all(part.isdigit() and len(part) < 9 for part in parts) else None

    this = order(llama_cpp_version)
    older = [one for one in _ROWS_CHANGED_IN if this is not None and (order(one) or ()) <= this]
    return older[-1] if older else llama_cpp_version


def meta_to_strings(meta: ArtifactMeta) -> dict[str, str]:
    """The metadata of a safetensors file."""
    return {
        "format": FORMAT,
        "format_version": str(meta.format_version),
        "kind": str(meta.kind),
        "skill": meta.skill,
        "skill_sha256": meta.skill_sha256,
        "model_fingerprint": meta.model_fingerprint,
        "model_name": meta.model_name,
        "model_arch": meta.model_arch,
        "n_tokens": str(meta.n_tokens),
        "position_start": str(meta.position_start),
        "lead": meta.lead,
        "wrapper": meta.wrapper,
        "rotation_fingerprint": meta.rotation_fingerprint,
        "store": str(meta.store),
        "llama_cpp_version": meta.llama_cpp_version,
        "created": meta.created,
        "origin": meta.origin,
        "fields": json.dumps([[one.name, one.value, one.start, one.stop] for one in meta.fields]),
        "layout": json.dumps(None if meta.layout is None else layout_to_json(meta.layout)),
        "tokens": " ".join(map(str, meta.tokens)),
    }


def meta_from_strings(strings: Mapping[str, str]) -> ArtifactMeta:
    """Read and check the metadata of an artifact, which fit the checksum of their header: what is missing was not lost.

    Raises:
        OtherVersionError: another version of kvnotes-local wrote it.
        ArtifactError: what else is wrong, without the file's name and without advice.
    """
    if strings.get("format") != FORMAT:
        raise ArtifactError("is a safetensors file, but none that kvnotes-local wrote")
    version = _number(strings, "format_version", 0, _MAX_POSITION)
    if version != FORMAT_VERSION:
        raise _other_version(strings)
    try:
        kind, store = ArtifactKind(_string(strings, "kind")), StoreType(_string(strings, "store"))
    except ValueError as error:
        raise _other_version(strings) from error
    meta = ArtifactMeta(
        skill=composed(_string(strings, "skill")),
        skill_sha256=_string(strings, "skill_sha256"),
        model_fingerprint=_string(strings, "model_fingerprint"),
        model_name=_string(strings, "model_name"),
        model_arch=_string(strings, "model_arch"),
        tokens=_tokens(_string(strings, "tokens")),
        position_start=_number(strings, "position_start", 0, _MAX_POSITION),
        lead=_string(strings, "lead"),
        wrapper=_string(strings, "wrapper"),
        rotation_fingerprint=_string(strings, "rotation_fingerprint"),
        store=store,
        llama_cpp_version=_string(strings, "llama_cpp_version"),
        created=_string(strings, "created"),
        fields=_fields(_json(strings, "fields")),
        origin=_string(strings, "origin"),
        kind=kind,
        layout=_layout(_json(strings, "layout")),
        format_version=version,
    )
    if _number(strings, "n_tokens", 0, _MAX_POSITION) != meta.n_tokens:
        raise ArtifactError("says another number of tokens than it lists")
    check_meta(meta)
    return meta


def check_meta(meta: ArtifactMeta) -> None:
    """Raise ArtifactError for counts, spans or types that contradict each other."""
    if not meta.tokens:
        raise ArtifactError("holds no tokens")
    if not all(0 <= token <= _MAX_POSITION for token in meta.tokens):
        raise ArtifactError("holds token numbers out of range")
    if meta.position_start < 0 or meta.position_start + meta.n_tokens > _MAX_POSITION:
        raise ArtifactError(f"starts at position {meta.position_start}, which is out of range")
    at = 0
    for one in meta.fields:
        if not at <= one.start <= one.stop <= meta.n_tokens:
            raise ArtifactError(f"has a field {one.name[:40]!r} at tokens {one.start} to {one.stop}, which cannot be")
        at = one.stop
    for name in ("skill", "model_name", "model_arch", "origin"):
        if not getattr(meta, name).isprintable():
            raise ArtifactError(f"has control characters in its {name}")
    if (meta.layout is None) != (meta.kind is ArtifactKind.STATE):
        raise ArtifactError(f"is of kind {meta.kind} and should{' not' if meta.layout else ''} have a layout")
    if meta.layout is not None:
        _check_store(meta.layout, meta.store)


def _check_store(layout: StateLayout, store: StoreType) -> None:
    # Rows that are no whole number of Q8_0 blocks stay in F16.
    allowed = {GGMLType.F16} if store is StoreType.F16 else {GGMLType.Q8_0, GGMLType.F16}
    for cache in layout.caches:
        for layer in cache.layers:
            for tensor in (layer.k, layer.v):
                if tensor is not None and tensor.type not in allowed:
                    raise ArtifactError(f"stores {tensor.type.name} rows, though it says {store}")


def _string(strings: Mapping[str, str], key: str) -> str:
    value = strings.get(key)
    if value is None:
        raise _other_version(strings)
    return value


def _other_version(strings: Mapping[str, str]) -> OtherVersionError:
    return OtherVersionError("was made by another version of kvnotes-local", strings.get("model_name", ""))


def _number(strings: Mapping[str, str], key: str, low: int, high: int) -> int:
    text = _string(strings, key)
    if not re.fullmatch(r"[0-9]{1,12}", text) or not low <= int(text) <= high:
        raise ArtifactError(f"has {key} {text[:20]!r}, which is no number from {low} to {high}")
    return int(text)


def _tokens(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"(?:[0-9]{1,10}(?: [0-9]{1,10})*)?", text):
        raise ArtifactError("has a malformed list of tokens")
    return tuple(map(int, text.split()))


def _json(strings: Mapping[str, str], key: str) -> Any:
    try:
        return json.loads(_string(strings, key))
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"has malformed {key}") from error


def _layout(value: Any) -> StateLayout | None:
    try:
        return None if value is None else layout_from_json(value)
    except LayoutError as error:
        raise ArtifactError(f"has a malformed layout ({error})") from error


def _fields(value: Any) -> tuple[FieldSpan, ...]:
    try:
        spans = tuple(FieldSpan(*one) for one in value)
    except TypeError as error:
        raise ArtifactError("has malformed fields") from error
    for one in spans:
        if not (isinstance(one.name, str) and isinstance(one.value, str) and type(one.start) is type(one.stop) is int):
            raise ArtifactError("has malformed fields")
    return spans
