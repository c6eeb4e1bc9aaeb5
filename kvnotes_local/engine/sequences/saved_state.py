"""A whole sequence as a file, to go on with a chat later without reading it again.

The file is an artifact of kind *state*: tokens, checksums, model and format are checked before a byte reaches llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from kvnotes_local.artifacts.artifact import ArtifactMeta, open_artifact
from kvnotes_local.artifacts.writer import write_state_artifact
from kvnotes_local.contract.model_info import ModelInfo
from kvnotes_local.contract.store_type import StoreType
from kvnotes_local.errors import ArtifactError
from kvnotes_local.kv.layout import StateLayout
from kvnotes_local.kv.state import validate_state


def save_state(path: Path, info: ModelInfo, state_format: str, tokens: Sequence[int], blob: memoryview) -> int:
    """Write a sequence's state; bytes of the file. ``state_format``: what the live cache looks like.

    Raises ArtifactError.
    """
    meta = ArtifactMeta(
        skill="chat",
        skill_sha256="",
        model_fingerprint=info.fingerprint,
        model_name=info.name,
        model_arch=info.arch,
        tokens=tuple(tokens),
        position_start=0,
        lead=state_format,
        wrapper="",
        rotation_fingerprint=info.rotation_fingerprint,
        store=StoreType.F16,
        llama_cpp_version=info.llama_cpp_version,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_state_artifact(path, meta, blob)
    return path.stat().st_size


def load_state(
    path: Path, info: ModelInfo, state_format: str, layout: StateLayout | None, n_ctx: int
) -> tuple[tuple[int, ...], memoryview]:
    """Tokens and blob of a saved sequence, verified. Raises ArtifactError where it cannot go into this context."""
    artifact = open_artifact(path, model_fingerprint=info.fingerprint, llama_cpp_version=info.llama_cpp_version)
    if artifact.meta.lead != state_format:
        raise ArtifactError(f"{path} was saved from a cache of another type or build; the chat is read again.")
    if len(artifact.meta.tokens) > n_ctx:
        raise ArtifactError(f"{path} holds {len(artifact.meta.tokens):,} tokens; this context has {n_ctx:,}.")
    blob = artifact.state()
    if layout is not None:
        validate_state(blob, layout, n_cells_max=n_ctx)
    return artifact.meta.tokens, blob
