"""Chats that are not in the context: their states in memory up to a limit, then on disk, the least recently used first."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvnotes_local.artifacts.tensor_file import TEMPORARY_PREFIX, TEMPORARY_SUFFIX
from kvnotes_local.contract.protocol import Parked
from kvnotes_local.errors import ArtifactError, StateFormatError

Save = Callable[[Path, tuple[int, ...], memoryview], int]
Load = Callable[[Path], tuple[tuple[int, ...], memoryview]]

MEMORY_LIMIT = 1 << 30
DISK_LIMIT = 4 << 30
_STALE_SECONDS = 3600.0
_ASIDE = "deleted-"


@dataclass(frozen=True)
class ShelvedState:
    """One sequence's tokens and state blob."""

    tokens: tuple[int, ...]
    blob: memoryview


class StateShelf:
    """States by key. ``directory`` None: what does not fit into memory is forgotten. Limits in bytes."""

    def __init__(
        self,
        save: Save,
        load: Load,
        directory: Path | None,
        *,
        memory_limit: int = MEMORY_LIMIT,
        disk_limit: int = DISK_LIMIT,
    ) -> None:
        self._save = save
        self._load = load
        self._directory = directory
        self._memory_limit = memory_limit
        self._disk_limit = disk_limit
        self._memory: OrderedDict[str, ShelvedState] = OrderedDict()

    @property
    def n_bytes(self) -> int:
        """Bytes in memory."""
        return sum(state.blob.nbytes for state in self._memory.values())

    def put(self, key: str, state: ShelvedState) -> Parked:
        """Keep a state in memory, as long as there is room for it, then on disk."""
        self._memory.pop(key, None)
        self._memory[key] = state
        kept, forgotten = True, 0
        while self._memory and self.n_bytes > self._memory_limit:
            oldest, spilled = self._memory.popitem(last=False)
            one = self.keep(oldest, spilled)
            forgotten += one.forgotten
            if not one.kept and oldest == key:
                kept = False
            elif not one.kept:
                forgotten += 1
        return Parked(kept, forgotten)

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

    def keep(self, key: str, state: ShelvedState) -> Parked:
        """Write a state to disk, for another process to go on with; it is not kept where it is too large or cannot be written."""
        path = self._path(key)
        if path is None or state.blob.nbytes > self._disk_limit:
            return Parked(False)
        forgotten = 0
        try:
            forgotten = self._make_room(state.blob.nbytes, path)
            self._save(path, state.tokens, state.blob)
        except (ArtifactError, OSError):
            return Parked(False, forgotten)  # a full disk costs reading the chat again, nothing else
        return Parked(True, forgotten)

    def discard(self, key: str) -> None:
        self._memory.pop(key, None)
        path = self._path(key)
        if path is not None:
            with suppress(OSError):  # what may not be deleted is replaced with the chat's next state
                path.unlink()

    def _make_room(self, n_bytes: int, keep: Path) -> int:
        """Delete the states that were not used for longest until so many bytes more are within the limit; how many went."""
        assert self._directory is not None
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = sorted(entry for entry in self._files() if entry[2] != keep)
        total = sum(size for _, size, _ in files) + n_bytes
        forgotten = 0
        for written, size, path in files:
            unfinished = path.name.startswith(TEMPORARY_PREFIX)
            if unfinished and time.time() - written < _STALE_SECONDS:
                continue  # another program may be writing it
            if unfinished or total > self._disk_limit:
                path.unlink(missing_ok=True)
                total -= size
                forgotten += not unfinished
        return forgotten

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Time of writing, bytes and path of each state, and of what a killed program left of one."""
        assert self._directory is not None
        for path in self._directory.iterdir():
            with suppress(FileNotFoundError):  # another program makes room, too
                status = path.stat()
                if path.suffix in (".safetensors", TEMPORARY_SUFFIX):
                    yield status.st_mtime, status.st_size, path

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


def set_state_aside(cache_dir: Path, key: str) -> None:
    """Take the state of a chat that was deleted out of use, until it is put back or ``forget_states_aside``. Raises
    ArtifactError."""
    path = _file(states_directory(cache_dir), key)
    try:
        path.replace(_aside(path))
    except (FileNotFoundError, NotADirectoryError):
        return  # there is none: put back, the chat is read again
    except OSError as error:
        raise ArtifactError(f"The saved state {path} cannot be deleted: {error.strerror}. Check its rights.") from error


def put_state_back(cache_dir: Path, key: str) -> None:
    """Use the state of a chat again that was set aside; where that cannot be, the chat is read again."""
    path = _file(states_directory(cache_dir), key)
    with suppress(OSError):
        _aside(path).replace(path)


def forget_states_aside(cache_dir: Path) -> None:
    """Delete the states of chats that will not be put back any more."""
    with suppress(OSError):  # tried again the next time
        for path in states_directory(cache_dir).glob(f"{_ASIDE}*"):
            path.unlink(missing_ok=True)


def _aside(path: Path) -> Path:
    return path.with_name(f"{_ASIDE}{path.name}")


def _file(directory: Path, key: str) -> Path:
    return directory / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.safetensors"
