"""The model that is taken where none is named: it stays the same until the user chooses another."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.errors import KvnotesError, ModelError
from kvnotes_local.models.choice import resolve_model
from kvnotes_local.models.files import FoundModel
from kvnotes_local.paths import Paths, ensure_private
from kvnotes_local.small_file import read_json

CHOOSE = "Choose one with `kvnotes models default NAME`, or give --model."


@dataclass(frozen=True)
class DefaultModel:
    """Name and path of a model in a JSON file. The first model that was ever taken is written down, so that one that is found
    later, or added, does not take its place."""

    file: Path

    @classmethod
    def default(cls) -> DefaultModel:
        return cls(Paths.default().data / "default_model.json")

    def choose(self, model: FoundModel) -> None:
        """Take this one from now on. Raises OSError, KvnotesError."""
        ensure_private(self.file.parent)
        write_atomically(self.file, json.dumps({"name": model.name, "path": str(model.path)}) + "\n")

    def find(self, found: Sequence[FoundModel]) -> FoundModel | None:
        """The default; None where none was chosen or taken yet. ``found``: the models of this machine.

        A file that has moved is known by its name. Raises ModelError for a model that is gone, and a damaged list.
        """
        known = self._read()
        if known is None:
            return None
        name, path = known
        if path.is_file():
            return resolve_model(path, found)
        moved = next((model for model in found if model.name == name), None)
        if moved is None:
            raise ModelError(f"The default model {name} is gone: there is no file {path}. {CHOOSE}")
        return moved

    def take(self, found: Sequence[FoundModel]) -> FoundModel:
        """The default, else the first model of all, which is the default from now on. Raises ModelError."""
        model = self.find(found)
        if model is None:
            model = resolve_model(None, found)
            with contextlib.suppress(
                OSError, KvnotesError
            ):  # where nothing can be kept, the next time is the first again
                self.choose(model)
        return model

    def _read(self) -> tuple[str, Path] | None:
        try:
            entry = read_json(self.file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise ModelError(f"{self.file} cannot be read: {error}. {CHOOSE}") from error
        if not (
            isinstance(entry, dict) and all(isinstance(entry.get(key), str) and entry[key] for key in ("name", "path"))
        ):
            raise ModelError(f"{self.file} does not name a model. {CHOOSE}")
        return entry["name"], Path(entry["path"])
