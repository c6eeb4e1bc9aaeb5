"""The folder in which artifacts are kept: one folder a model, one file an artifact, found by key.

Several processes may use it at once: files appear by renaming and are never changed in place. The time of last use is
the file's modification time, since reading (a backup, a listing) leaves that alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from kvnotes_local.artifacts.artifact import read_artifact_meta
from kvnotes_local.artifacts.meta import ArtifactMeta
from kvnotes_local.artifacts.tensor_file import TEMPORARY_PREFIX, TEMPORARY_SUFFIX
from kvnotes_local.artifacts.writer import NO_ROOM
from kvnotes_local.errors import ArtifactError, DiskFullError, OtherVersionError

SUFFIX = ".safetensors"
_KEY_DIGITS = 16
_STALE_SECONDS = 3600.0
_USED_SECONDS = 3600.0


@dataclass(frozen=True)
class StoredArtifact:
    """A file of the store. ``last_used``: seconds since the epoch. ``meta`` is None where ``problem`` says why.

    ``is_other_version``: not damaged, but made by another version of kvnotes-local. ``model_name``: as far as it is known.
    """

    path: Path
    n_bytes: int
    last_used: float
    meta: ArtifactMeta | None
    problem: str = ""
    is_other_version: bool = False
    model_name: str = ""


class ArtifactStore:
    """Artifacts below one folder, which need not exist yet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, key: str, skill: str, model_fingerprint: str) -> Path:
        """Where the artifact of that key belongs: ``<model>/<skill>-<key>.safetensors``."""
        model = re.sub(r"[^0-9A-Za-z]+", "", model_fingerprint)[:12] or "model"
        name = re.sub(r"[^0-9A-Za-z._-]+", "-", skill).strip("-.")[:80] or "skill"
        return self.directory / model / f"{name}-{_short(key)}{SUFFIX}"

    def find(self, key: str) -> Path | None:
        """The file of that key, if there is one; opening it checks it."""
        ending = f"-{_short(key)}{SUFFIX}"
        return next((path for path, _ in self._files() if path.name.endswith(ending)), None)

    def list(self) -> tuple[StoredArtifact, ...]:
        """All artifacts, by path; only headers are read, and damaged ones are listed with their problem."""
        found = []
        for path, status in self._files():
            if not path.name.endswith(SUFFIX):
                continue
            one = StoredArtifact(path, status.st_size, status.st_mtime, None)
            try:
                meta = read_artifact_meta(path)
                one = replace(one, meta=meta, model_name=meta.model_name)
            except OtherVersionError as error:
                one = replace(one, problem=str(error), is_other_version=True, model_name=error.model_name)
            except ArtifactError as error:
                if not path.exists():
                    continue  # removed by someone else just now
                one = replace(one, problem=str(error))
            found.append(one)
        return tuple(sorted(found, key=lambda one: one.path))

    def total_bytes(self) -> int:
        """Bytes of all artifacts."""
        return sum(status.st_size for path, status in self._files() if path.name.endswith(SUFFIX))

    def check_writable(self) -> None:
        """Raises DiskFullError or ArtifactError where nothing can be written: better before the work than after it."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                dir=self.directory, prefix=TEMPORARY_PREFIX, suffix=TEMPORARY_SUFFIX
            ) as file:
                file.write(b"x")
        except OSError as error:
            kind = DiskFullError if error.errno in NO_ROOM else ArtifactError
            raise kind(
                f"{self.directory} cannot be written ({error.strerror or error}); check its rights and its disk, "
                "or choose another --cache-dir"
            ) from error

    def touch_used(self, path: Path) -> None:
        """Note that the artifact was used now, to the hour; one that is gone is nothing to note, nor is one on a read-only disk.

        Not oftener, since a file whose times change has its checksums compared again.
        """
        with contextlib.suppress(OSError):
            if abs(time.time() - path.stat().st_mtime) > _USED_SECONDS:
                os.utime(path)

    def remove(self, key: str) -> int:
        """Delete an artifact; bytes freed, 0 if there was none.

        Raises:
            ArtifactError: the file cannot be deleted.
        """
        path = self.find(key)
        return 0 if path is None else _unlink(path)

    def remove_path(self, path: Path) -> int:
        """Delete a file of the store (one that ``list`` gave, damaged or not); bytes freed.

        Raises:
            ArtifactError: the path is no artifact of this store, or cannot be deleted.
        """
        if path.suffix != SUFFIX or path.parent.parent != self.directory:
            raise ArtifactError(f"{path} is no artifact in {self.directory}; see 'kvnotes skills list'")
        return _unlink(path)

    def gc(
        self,
        max_bytes: int | None = None,
        older_than: timedelta | None = None,
        *,
        dry_run: bool = False,
        keep: Collection[str] = (),
    ) -> tuple[StoredArtifact, ...]:
        """Delete what was not used for ``older_than``, then the least recently used until ``max_bytes`` are left.

        What another version made goes too, and leftovers of interrupted writes that are an hour old. Artifacts of skills named
        in ``keep`` stay, and of their parts.
        Returns what was deleted, or with ``dry_run`` what would be.

        Raises:
            ArtifactError: a file cannot be deleted.
        """
        now = time.time()
        doomed = [*self._leftovers(now)]
        stored = sorted(self.list(), key=lambda one: one.last_used)
        left = sum(one.n_bytes for one in stored)
        for one in stored:
            if one.meta is not None and one.meta.skill.partition("/")[0] in keep:
                continue
            too_old = older_than is not None and now - one.last_used > older_than.total_seconds()
            too_much = max_bytes is not None and left > max_bytes
            if too_old or too_much or one.is_other_version:
                doomed.append(one)
                left -= one.n_bytes
        if not dry_run:
            for one in doomed:
                _unlink(one.path)
        return tuple(doomed)

    def _leftovers(self, now: float) -> tuple[StoredArtifact, ...]:
        return tuple(
            StoredArtifact(path, status.st_size, status.st_mtime, None, "left over from an interrupted write")
            for path, status in self._files()
            if path.name.startswith(TEMPORARY_PREFIX)
            and path.name.endswith(TEMPORARY_SUFFIX)
            and now - status.st_mtime > _STALE_SECONDS
        )

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Regular files one level down; links are not followed, and what vanishes meanwhile is left out."""
        for folder in _entries(self.directory):
            if folder.is_dir(follow_symlinks=False):
                for entry in _entries(Path(folder.path)):
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    if stat.S_ISREG(status.st_mode):
                        yield Path(entry.path), status


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as scan:
            return list(scan)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ArtifactError(
            f"{folder} cannot be read ({error.strerror}); check its rights, or choose another --cache-dir"
        ) from error


def _short(key: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{16,64}", key):
        raise ArtifactError(f"{key[:80]!r} is no artifact key; see 'kvnotes skills list'")
    return key[:_KEY_DIGITS]


def _unlink(path: Path) -> int:
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise ArtifactError(
            f"{path} cannot be deleted ({error.strerror}); close what uses it, and check its rights"
        ) from error
    return size
