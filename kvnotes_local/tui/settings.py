"""Settings in one TOML file that people may edit: comments stay when a value is changed from within the app."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomlkit
from msgspec import Meta
from tomlkit.exceptions import TOMLKitError

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.contract.generation import Sampling
from kvnotes_local.contract.params import MAX_SEQUENCES, MIN_SEQUENCES
from kvnotes_local.errors import KvnotesError
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.notebook.store.params import DEFAULT_MAX_TOKENS
from kvnotes_local.paths import ensure_private
from kvnotes_local.records import as_type
from kvnotes_local.small_file import read_small

T = TypeVar("T")

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


_Table = dict[str, Any]
_NO_TABLE: _Table = {}
_Key = Annotated[str, Meta(pattern=r"\S")]
_Tokens = Annotated[int, Meta(ge=1, lt=1 << 20)]
_Sequences: Any = Literal[(0, *range(MIN_SEQUENCES, MAX_SEQUENCES + 1))]
_Parameter = Annotated[float, Meta(ge=0, lt=1e9)]


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
        tables = self._value("presets", _Table, _NO_TABLE, "a table")
        presets = {name: self._sampling(f"presets.{name}", table) for name, table in tables.items()}
        usual = Settings(presets=presets) if presets else Settings()
        keys = self._value("keys", _Table, _NO_TABLE, "a table")
        return replace(
            usual,
            theme=self._value("theme", str, usual.theme, "a text"),
            edit_level=EditLevel(self._choice("edit_level", list(EditLevel), usual.edit_level.value, usual.edit_level)),
            preset=self._choice("preset", list(usual.presets), usual.preset, next(iter(usual.presets))),
            max_tokens=self._value("max_tokens", _Tokens, usual.max_tokens, "a number of tokens"),
            sequences=self._value(
                "sequences", _Sequences, usual.sequences, f"0, or from {MIN_SEQUENCES} to {MAX_SEQUENCES}"
            ),
            mouse=self._value("mouse", bool, usual.mouse, "true or false"),
            keys={
                name: key
                for name, key in keys.items()
                if self._checked(f"keys.{name}", key, _Key, None, 'a key, as in "ctrl+n"')
            },
        )

    def _sampling(self, name: str, table: object) -> Sampling:
        known = {one.name: type(getattr(Sampling(), one.name)) for one in fields(Sampling) if one.name != "grammar"}
        values: dict[str, Any] = {}
        for key, value in self._checked(name, table, _Table, _NO_TABLE, "a table of parameters").items():
            if key not in known:
                self._problem(f"{name}.{key}", self._nearest(key, list(known)))
                continue
            number = self._checked(f"{name}.{key}", value, _Parameter, None, "a number from 0 up")
            if number is not None:
                values[key] = known[key](number)
        return Sampling(**values)

    def _choice(self, key: str, names: Sequence[str], usual: str, instead: str) -> str:
        value = self._value(key, str, usual, "a text")
        if value in names:
            return value
        self._problem(key, self._nearest(value, names))
        return instead

    def _value(self, key: str, kind: Any, usual: T, expected: str) -> T:
        return self._checked(key, self._document.get(key, usual), kind, usual, expected)

    def _checked(self, name: str, value: object, kind: Any, usual: T, expected: str) -> T:
        try:
            checked: T = as_type(value, kind)
        except ValueError:
            self._problem(name, f"it has to be {expected}, not {value!r}")
            return usual
        return checked

    def _nearest(self, name: str, known: Sequence[str]) -> str:
        near = difflib.get_close_matches(name, known, n=1)
        return f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"

    def _problem(self, key: str, hint: str) -> None:
        self.problems.append(f"{self._path}: {key} is not understood; {hint}")
