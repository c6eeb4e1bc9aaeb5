"""Model files and folders that the user added once and for all (``kvnotes models add``)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.errors import ModelError
from kvnotes_local.paths import Paths, ensure_private
from kvnotes_local.small_file import read_json

_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class AddedModels:
    """A list of absolute paths in a JSON file, which need not exist yet."""

    file: Path

    @classmethod
    def default(cls) -> AddedModels:
        return cls(Paths.default().data / "models.json")

    @property
    def paths(self) -> tuple[Path, ...]:
        """Raises ModelError when the file is damaged."""
        try:
            entries = read_json(self.file, _MAX_BYTES)
        except FileNotFoundError:
            return ()
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.file} cannot be read: {error}. Remove it and add the models again.") from error
        if not isinstance(entries, list) or not all(isinstance(entry, str) and entry for entry in entries):
            raise ModelError(f"{self.file} is no list of paths. Remove it and add the models again.")
        return tuple(Path(entry) for entry in entries)

    def add(self, path: Path) -> bool:
        """Add a file or a folder; False when it is there already. Raises ModelError for what does not exist."""
        path = path.expanduser().absolute()
        if not path.exists():
            raise ModelError(f"There is no file or folder {path}.")
        if path in self.paths:
            return False
        self._write((*self.paths, path))
        return True

    def remove(self, path: Path) -> bool:
        """Take a path off the list; False when it is not on it. The file itself stays."""
        path = path.expanduser().absolute()
        if path not in self.paths:
            return False
        self._write(tuple(one for one in self.paths if one != path))
        return True

    def _write(self, paths: tuple[Path, ...]) -> None:
        ensure_private(self.file.parent)
        write_atomically(self.file, json.dumps([str(path) for path in paths], indent=2) + "\n")
