"""Chats that are not in the context: their states in memory up to a limit, then on disk, the least recently used first."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvnotes_local.errors import ArtifactError, StateFormatError

Save = Callable[[Path, tuple[int, ...], memoryview], int]
Load = Callable[[Path], tuple[tuple[int, ...], memoryview]]

MEMORY_LIMIT = 1 << 30
DISK_LIMIT = 4 << 30


@dataclass(frozen=True)
class ShelvedState:
    """One sequence's tokens and state blob."""

    tokens: tuple[int, ...]
    blob: memoryview


class StateShelf:
    """States by key. ``directory`` None: what does not fit into memory is forgotten. Limits in bytes.

    ``evicted`` is told the key of each state that is forgotten.
    """

    def __init__(
        self,
        save: Save,
        load: Load,
        directory: Path | None,
        *,
        memory_limit: int = MEMORY_LIMIT,
        disk_limit: int = DISK_LIMIT,
        evicted: Callable[[str], None] | None = None,
    ) -> None:
        self._save = save
        self._load = load
        self._directory = directory
        self._memory_limit = memory_limit
        self._disk_limit = disk_limit
        self._evicted = evicted or (lambda key: None)
        self._memory: OrderedDict[str, ShelvedState] = OrderedDict()

    @property
    def n_bytes(self) -> int:
        """Bytes in memory."""
        return sum(state.blob.nbytes for state in self._memory.values())

    def put(self, key: str, state: ShelvedState) -> None:
        self._memory.pop(key, None)
        self._memory[key] = state
        while self._memory and self.n_bytes > self._memory_limit:
            oldest, spilled = self._memory.popitem(last=False)
            if not self._spill(oldest, spilled):
                self._evicted(oldest)

    def take(self, key: str) -> ShelvedState | None:
        """The state of a key, which leaves the shelf; None where it was forgotten or its file is damaged."""
        state = self._memory.pop(key, None)
        path = self._path(key)
        if state is not None or path is None:
            return state
        try:
            tokens, blob = self._load(path)
        except (ArtifactError, StateFormatError):
            return None  # gone, damaged or of another build: the chat is read again
        return ShelvedState(tokens, blob)

    def keep(self, key: str, state: ShelvedState) -> bool:
        """Write a state to disk, for another process to go on with; False where it is too large or cannot be written."""
        return self._spill(key, state)

    def discard(self, key: str) -> None:
        self._memory.pop(key, None)
        path = self._path(key)
        if path is not None:
            path.unlink(missing_ok=True)

    def _spill(self, key: str, state: ShelvedState) -> bool:
        path = self._path(key)
        if path is None or state.blob.nbytes > self._disk_limit:
            return False
        try:
            self._make_room(state.blob.nbytes, path)
            self._save(path, state.tokens, state.blob)
        except (ArtifactError, OSError):
            return False  # a full disk costs reading the chat again, nothing else
        return True

    def _make_room(self, n_bytes: int, keep: Path) -> None:
        assert self._directory is not None
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = [(path.stat(), path) for path in self._directory.glob("*.safetensors") if path != keep]
        total = sum(stat.st_size for stat, _ in files) + n_bytes
        for stat, path in sorted(files, key=lambda entry: entry[0].st_mtime):
            if total <= self._disk_limit:
                break
            path.unlink(missing_ok=True)
            total -= stat.st_size
            self._evicted(path.stem)

    def _path(self, key: str) -> Path | None:
        if self._directory is None:
            return None
        return _file(self._directory, key)


def states_directory(cache_dir: Path) -> Path:
    """Where the states that left the memory are kept."""
    return cache_dir / "states"


def forget_state(cache_dir: Path, key: str) -> bool:
    """Delete the state that was kept under a key, without an engine; False where there is none. Raises ArtifactError."""
    path = _file(states_directory(cache_dir), key)
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ArtifactError(f"The saved state {path} cannot be deleted: {error.strerror}. Check its rights.") from error
    return True


def _file(directory: Path, key: str) -> Path:
    return directory / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.safetensors"
