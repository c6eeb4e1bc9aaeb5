"""Settings in one TOML file that people may edit: comments stay when a value is changed from within the app."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.contract.generation import Sampling
from kvnotes_local.contract.params import MAX_SEQUENCES, MIN_SEQUENCES
from kvnotes_local.errors import KvnotesError
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.notebook.store.params import DEFAULT_MAX_TOKENS
from kvnotes_local.paths import ensure_private
from kvnotes_local.small_file import read_small

FILE_NAME = "settings.toml"
DEFAULT_THEME = "kvnotes-night"

DEFAULT_TEXT = """\
# Settings of the kvnotes screens. Changes made there are written here; your comments stay.

# kvnotes-night, kvnotes-day, or any theme of Textual (the Settings screen lists them).
theme = "kvnotes-night"

# How far a change of a field goes: erratum, field, field+erratum, window, full, auto.
edit_level = "field+erratum"

# How answers of new chats are drawn: one of the presets below. max_tokens is the longest answer.
preset = "exact"
max_tokens = 512

# How many chats and forks a model's context holds at once (4 to 256); 0 chooses. What does not fit is put aside.
sequences = 0

# false leaves the mouse to the terminal.
mouse = true

[presets.exact]
temperature = 0.0

[presets.balanced]
temperature = 0.7
top_p = 0.95
min_p = 0.05

[presets.lively]
temperature = 1.0
min_p = 0.02

# Keys by what they do; the Help screen lists the names. Several keys are separated by commas.
[keys]
# "chat.new" = "ctrl+n"
"""


class SettingsError(KvnotesError):
    """The settings file cannot be read or written, or says something that makes no sense."""


@dataclass(frozen=True)
class Settings:
    """``preset``: which of ``presets`` new chats are drawn with. ``keys``: by id of the binding."""

    theme: str = DEFAULT_THEME
    edit_level: EditLevel = EditLevel.FIELD_ERRATUM
    preset: str = "exact"
    max_tokens: int = DEFAULT_MAX_TOKENS
    sequences: int = 0
    mouse: bool = True
    presets: Mapping[str, Sampling] = field(default_factory=lambda: {"exact": Sampling()})
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def sampling(self) -> Sampling:
        return self.presets.get(self.preset, Sampling())


class SettingsFile:
    """The file at ``path``, which need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> tuple[Settings, tuple[str, ...]]:
        """The settings, and what of the file was not understood and is as if it were not there."""
        try:
            document = self._document().unwrap()
        except SettingsError as error:
            return Settings(), (str(error),)
        reader = _Reader(self.path, document)
        return reader.settings(), tuple(reader.problems)

    def change(self, keys: tuple[str, ...], value: str | float | bool) -> None:
        """Set one value; everything else in the file stays as it is. Raises SettingsError."""
        document = self._document()
        table: Any = document
        for key in keys[:-1]:
            if key not in table:
                table[key] = tomlkit.table()
            table = table[key]
        table[keys[-1]] = value
        try:
            ensure_private(self.path.parent)
            write_atomically(self.path, tomlkit.dumps(document))
        except OSError as error:
            raise SettingsError(
                f"{self.path} cannot be written: {error.strerror}. The change holds until you leave."
            ) from error

    def _document(self) -> tomlkit.TOMLDocument:
        try:
            document = tomlkit.parse(read_small(self.path))
            document.unwrap()  # finds what parsing leaves, such as a key that is there twice
            return document
        except FileNotFoundError:
            return tomlkit.parse(DEFAULT_TEXT)
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{self.path} cannot be read ({error}). The usual settings are used.") from error
        except (TOMLKitError, ValueError) as error:
            raise SettingsError(
                f"{self.path} is no TOML: {error}. Correct or delete it; the usual settings are used."
            ) from error


class _Reader:
    """Takes from a document what makes sense and notes what does not."""

    def __init__(self, path: Path, document: Mapping[str, Any]) -> None:
        self._path = path
        self._document = document
        self.problems: list[str] = []

    def settings(self) -> Settings:
        names = [one.name for one in fields(Settings)]
        for key in self._document:
            if key not in names:
                self._problem(key, self._nearest(key, names))
        presets = {name: self._sampling(name, table) for name, table in self._table("presets").items()}
        usual = Settings(presets=presets) if presets else Settings()
        level = self._text("edit_level", usual.edit_level.value)
        if level not in list(EditLevel):
            self._problem("edit_level", self._nearest(level, list(EditLevel)))
            level = usual.edit_level.value
        preset = self._text("preset", usual.preset)
        if preset not in usual.presets:
            self._problem("preset", self._nearest(preset, list(usual.presets)))
            preset = next(iter(usual.presets))
        keys = {}
        for name, key in self._table("keys").items():
            if isinstance(key, str) and key.strip():
                keys[name] = key
            else:
                self._problem(f"keys.{name}", 'it has to be a key, as in "ctrl+n"')
        return replace(
            usual,
            theme=self._text("theme", usual.theme),
            edit_level=EditLevel(level),
            preset=preset,
            max_tokens=self._whole("max_tokens", usual.max_tokens),
            sequences=self._sequences(usual.sequences),
            mouse=self._switch("mouse", usual.mouse),
            keys=keys,
        )

    def _sampling(self, preset: str, table: object) -> Sampling:
        if not isinstance(table, dict):
            self._problem(f"presets.{preset}", "it has to be a table of parameters")
            return Sampling()
        known = {one.name: type(getattr(Sampling(), one.name)) for one in fields(Sampling) if one.name != "grammar"}
        values: dict[str, Any] = {}
        for key, value in table.items():
            if key not in known:
                self._problem(f"presets.{preset}.{key}", self._nearest(key, list(known)))
            elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
                self._problem(f"presets.{preset}.{key}", f"{value!r} is no number from 0 up")
            else:
                values[key] = known[key](value)
        return Sampling(**values)

    def _table(self, key: str) -> Mapping[str, Any]:
        value = self._document.get(key, {})
        if isinstance(value, dict):
            return value
        self._problem(key, "it has to be a table")
        return {}

    def _text(self, key: str, usual: str) -> str:
        value = self._document.get(key, usual)
        if isinstance(value, str):
            return value
        self._problem(key, f"it has to be a text, not {value!r}")
        return usual

    def _whole(self, key: str, usual: int) -> int:
        value = self._document.get(key, usual)
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 20:
            return value
        self._problem(key, f"it has to be a number of tokens, not {value!r}")
        return usual

    def _sequences(self, usual: int) -> int:
        value = self._document.get("sequences", usual)
        if (
            isinstance(value, int)
            and not isinstance(value, bool)
            and (value == 0 or MIN_SEQUENCES <= value <= MAX_SEQUENCES)
        ):
            return value
        self._problem("sequences", f"it has to be 0, or from {MIN_SEQUENCES} to {MAX_SEQUENCES}, not {value!r}")
        return usual

    def _switch(self, key: str, usual: bool) -> bool:
        value = self._document.get(key, usual)
        if isinstance(value, bool):
            return value
        self._problem(key, f"it has to be true or false, not {value!r}")
        return usual

    def _nearest(self, name: str, known: list[str]) -> str:
        near = difflib.get_close_matches(name, known, n=1)
        return f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"

    def _problem(self, key: str, hint: str) -> None:
        self.problems.append(f"{self._path}: {key} is not understood; {hint}")
