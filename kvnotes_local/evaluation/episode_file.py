"""Episode files: TOML, checked as a whole before anything of it is played."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from kvnotes_local.evaluation.episode import Episode, EpisodeError, Step
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.records import as_type
from kvnotes_local.small_file import read_small

_LARGEST = 2**31 - 1


_Text = Annotated[str, Meta(pattern=r"\S")]


@dataclass(frozen=True)
class _Rule:
    """What a value has to be, in words and as a type."""

    expected: str
    kind: Any

    def fits(self, value: Any) -> bool:
        try:
            as_type(value, self.kind)
        except ValueError:
            return False
        return True


class _Choices(_Rule):
    def fits(self, value: Any) -> bool:
        return super().fits(value) and len(set(value)) == len(value)


def _whole_number(least: int) -> _Rule:
    return _Rule(f"a whole number, {least} or more", Annotated[int, Meta(ge=least, le=_LARGEST)])


_TEXT = _Rule("a text that is not empty", _Text)
_VALUES = _Rule(
    'a table of fields with a text or a number each, as { limit = "90 euros" }',
    Annotated[dict[str, str | int | float], Meta(min_length=1)],
)

_ACTIONS: Mapping[str, _Rule] = {
    "say": _TEXT,
    "splice": _TEXT,
    "set": _VALUES,
    "ask": _TEXT,
    "drop": _TEXT,
    "fork": _whole_number(0),
    "undo": _whole_number(1),
}
_OPTIONS: Mapping[str, Mapping[str, _Rule]] = {
    "say": {"answer": _TEXT},
    "splice": {"at": _whole_number(0), "repair": _whole_number(0), "values": _VALUES},
    "set": {
        "level": _Rule(f"one of {', '.join(EditLevel)}", EditLevel),
        "window": _whole_number(1),
    },
    "ask": {
        "max_tokens": _whole_number(1),
        "choices": _Choices(
            'a list of two or more different texts, as ["Yes", "No"]', Annotated[list[_Text], Meta(min_length=2)]
        ),
    },
    "drop": {"clean": _Rule("true or false", bool)},
    "fork": {},
    "undo": {},
}


def load_episode(path: Path) -> Episode:
    """Read and check an episode. Raises EpisodeError, which names the step and the key, what is there and what should be."""
    data = _read(path)
    _check_keys(str(path), data, {"system", "step"}, "an episode")
    system, entries = data.get("system"), data.get("step")
    if not (system is None or isinstance(system, str)):
        raise EpisodeError(f"{path}, system: expected a text, found {_shown(system)}.")
    if not isinstance(entries, list) or not entries:
        found = "none" if entries is None else _shown(entries)
        raise EpisodeError(f"{path}: expected one [[step]] or more, found {found}.")
    return Episode(system, tuple(_step(f"{path}, step {number}", number, one) for number, one in enumerate(entries, 1)))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_small(path, pipe=True))
    except FileNotFoundError as error:
        raise EpisodeError(f"There is no file {path}. Give a TOML file with [[step]] tables.") from error
    except OSError as error:
        raise EpisodeError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise EpisodeError(f"{path} cannot be read: it is not UTF-8 text.") from error
    except tomllib.TOMLDecodeError as error:
        raise EpisodeError(f"{path} cannot be read, since it is not TOML: {str(error).rstrip('.')}.") from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, tables nested without end
        raise EpisodeError(f"{path} cannot be read: a number in it is too long, or it is nested too deeply.") from error


def _step(where: str, number: int, entry: Any) -> Step:
    if not isinstance(entry, dict):
        raise EpisodeError(f"{where}: expected a table, found {_shown(entry)}. Write [[step]] above its keys.")
    actions = [key for key in entry if key in _ACTIONS]
    if len(actions) != 1:
        found = " and ".join(actions) or ", ".join(map(repr, entry)) or "none"
        raise EpisodeError(f"{where}: expected exactly one of {', '.join(_ACTIONS)}, found {found}.")
    (action,) = actions
    rules = {action: _ACTIONS[action], **_OPTIONS[action]}
    _check_keys(where, entry, set(rules), action)
    for key, rule in rules.items():
        if key in entry and not rule.fits(entry[key]):
            raise EpisodeError(f"{where}, {key}: expected {rule.expected}, found {_shown(entry[key])}.")
    return Step(number, action, entry[action], {key: value for key, value in entry.items() if key != action})


def _check_keys(where: str, table: Mapping[str, Any], known: set[str], what: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        verb = "is" if len(unknown) == 1 else "are"
        raise EpisodeError(
            f"{where}: {', '.join(map(repr, unknown))} {verb} not known; {what} knows {', '.join(sorted(known))}."
        )


def _shown(value: Any) -> str:
    """A value as it stands in TOML, shortened."""
    match value:
        case bool():
            text = str(value).lower()
        case str():
            text = f'"{value}"'
        case list():
            text = f"[{', '.join(map(_shown, value[:8]))}]"
        case dict():
            text = f"{{ {', '.join(f'{key} = {_shown(one)}' for key, one in list(value.items())[:8])} }}"
        case int() if abs(value) > _LARGEST:
            text = "a number that is too large"
        case _:
            text = str(value)
    return text if len(text) <= 60 else text[:59] + "…"
