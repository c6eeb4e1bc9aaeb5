"""Everything that can be done, by name: the slash commands, the entries of the palette, and what the help screen lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from kvnotes_local.errors import UsageError

A = TypeVar("A")
"""What commands are carried out in: the host, which knows them as data only."""

LEVEL_OPTION = " --level "
"""Stands before the edit level of one edit, as on the command line."""


class Names(StrEnum):
    """What a command's first argument names: where its completions come from."""

    NOTHING = "nothing"
    SKILLS = "skills"
    CHAT_SKILLS = "chat skills"
    FIELDS = "fields"
    MODELS = "models"
    PRESETS = "presets"
    LEVELS = "levels"
    FORMATS = "formats"


@dataclass(frozen=True)
class Command(Generic[A]):
    """``usage``: its arguments; ``needs``: whether it makes sense without any. ``run`` gets the rest of the line."""

    name: str
    usage: str
    help: str
    run: Callable[[A, str], object]
    names: Names = Names.NOTHING
    needs: bool = False


def named(line: str, commands: Sequence[Command[A]]) -> Command[A] | None:
    """The command that a line begins with, the one with the longest name: names may be of two words."""
    words = re.split(r"\s", line.removeprefix("/"), maxsplit=2)
    found = (one for n in (2, 1) for one in commands if one.name == " ".join(words[:n]))
    return next(found, None)


def find_command(line: str, commands: Sequence[Command[A]]) -> tuple[Command[A], str]:
    """The command that ``/name rest`` means, and the rest. Raises UsageError."""
    command = named(line, commands)
    if command is not None:
        rest = line.removeprefix("/")[len(command.name) :].strip()
        if command.needs and not rest:
            raise UsageError(f"/{command.name} needs more: /{command.name} {command.usage}")
        if rest and not command.usage:
            raise UsageError(f"/{command.name} takes nothing more, so {rest!r} has no meaning here.")
        return command, rest
    name = line.removeprefix("/").partition(" ")[0]
    near = [one.name for one in commands if name and one.name.startswith(name)]
    hint = f"Did you mean /{near[0]}?" if near else "/help lists what there is."
    raise UsageError(f"There is no command /{name}. {hint}")


def split_assignment(text: str) -> tuple[str, str]:
    """``name = value``. Raises UsageError."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"{text!r} is not NAME = VALUE.")
    return name.strip(), value.strip()
