"""Artifacts from other machines: they wait on a shelf until the model here has confirmed a sample of their rows.

An artifact is a way to plant a note that no text shows. Before the first splice, rows at places that nobody can foresee are
computed again on the artifact's own rows before them. That finds rows of another text, of another model and of another
rotation. It does not prove every row: who changes a few rows only may slip through, so import from people you trust.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kvnotes_local.artifacts.artifact import open_artifact
from kvnotes_local.artifacts.meta import ArtifactMeta, artifact_key
from kvnotes_local.artifacts.writer import write_artifact
from kvnotes_local.contract.model_info import ModelInfo
from kvnotes_local.contract.protocol import Engine, RowCheck
from kvnotes_local.errors import ArtifactError, DiskFullError
from kvnotes_local.skills.artifact_store import ArtifactStore, StoredArtifact
from kvnotes_local.skills.task import Task

MAX_MEAN_ERROR = 0.3
MAX_WORST_ERROR = 0.7
"""Relative distances. Honest rows differ by 0.02 to 0.1, since they are means over several leads; rows of another text by
more than 1."""
_SPANS = 6
_SPAN_TOKENS = 8


class ImportShelf:
    """Artifacts that wait for their check, beside the store that they will go to."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self.waiting = ArtifactStore(store.directory.parent / "imports")

    def put(self, path: Path, origin: str) -> StoredArtifact:
        """Take in a file, checked for structure and checksums and marked with its origin; it is left where it is.

        Raises ArtifactError for a damaged file, and for a whole state, whose rows cannot be compared.
        """
        with open_artifact(path) as artifact:
            if artifact.is_state:
                raise ArtifactError(
                    f"{artifact.meta.skill} for {artifact.meta.model_name} is one whole state, which cannot be checked; "
                    f"compile it here with 'kvnotes skills compile {artifact.meta.skill}'"
                )
            meta = replace(artifact.meta, origin=origin)
            target = self.waiting.path(_loose_key(meta), meta.skill, meta.model_fingerprint)
            meta = write_artifact(target, meta, artifact.rows())
        status = target.stat()
        return StoredArtifact(target, status.st_size, status.st_mtime, meta)

    def adopt(self, engine: Engine, task: Task) -> bool:
        """Check the artifact that waits for this task, if one does, and move it to the store; False if none waits.

        Raises ArtifactError where its rows are not those of the model; it is removed then. Cancelled leaves it waiting.
        """
        info = engine.info
        path = self._path(info, task)
        if not path.exists():
            return False
        with self._removed_if_wrong(path), open_artifact(path, model_fingerprint=info.fingerprint) as artifact:
            if artifact.meta.tokens != task.turn.tokens or artifact.meta.fields != task.turn.fields:
                raise ArtifactError(f"{path} lists other tokens than the skill {task.labels.skill} has")
            check = engine.check_artifact(path, task.leads[-1], spans_to_check(len(task.turn.tokens)))
            if not (check.mean_error <= MAX_MEAN_ERROR and check.worst_error <= MAX_WORST_ERROR):
                raise ArtifactError(_refusal(artifact.meta, check))
            # Another machine may have measured the same rotation with other last bits; its keys were just confirmed.
            meta = replace(artifact.meta, rotation_fingerprint=info.rotation_fingerprint)
            write_artifact(task.path, meta, artifact.rows())
        _remove(path)
        return True

    def discard(self, info: ModelInfo, task: Task) -> None:
        """Delete what waits for a task that has an artifact already: it would wait for ever."""
        _remove(self._path(info, task))

    def _path(self, info: ModelInfo, task: Task) -> Path:
        key = artifact_key(
            skill_sha256=task.labels.skill_sha256,
            model_fingerprint=info.fingerprint,
            wrapper=task.labels.wrapper,
            lead=task.labels.lead,
            rotation_fingerprint="",
            store=task.store,
            llama_cpp_version=info.llama_cpp_version,
        )
        return self.waiting.path(key, task.labels.skill, info.fingerprint)

    @contextmanager
    def _removed_if_wrong(self, path: Path) -> Iterator[None]:
        try:
            yield
        except DiskFullError:
            raise
        except ArtifactError:
            _remove(path)
            raise


def spans_to_check(n_tokens: int) -> list[tuple[int, int]]:
    """The start, the end, and places in between that cannot be foreseen: ascending, without overlap."""
    choose = random.SystemRandom()
    slots = range(0, n_tokens, _SPAN_TOKENS)
    chosen = {slots[0], slots[-1], *choose.sample(list(slots), min(_SPANS, len(slots)))}
    return [(start, min(start + _SPAN_TOKENS, n_tokens)) for start in sorted(chosen)]


def _loose_key(meta: ArtifactMeta) -> str:
    """The artifact's key without the rotation, which is compared by computing."""
    return replace(meta, rotation_fingerprint="").key


def _refusal(meta: ArtifactMeta, check: RowCheck) -> str:
    return (
        f"The imported artifact of {meta.skill} ({meta.origin}) does not hold what {meta.model_name} computes: of "
        f"{check.n_rows} rows the worst is off by {check.worst_error:.2f} of its length, the mean by {check.mean_error:.2f}. "
        f"It was removed. Compile the skill here with 'kvnotes skills compile {meta.skill}'."
    )


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
