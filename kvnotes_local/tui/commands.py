"""Everything that can be done, by name: the slash commands, the entries of the palette, and what the help screen lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kvnotes_local.errors import UsageError

if TYPE_CHECKING:
    from kvnotes_local.tui.app import KvnotesApp


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
class Command:
    """``usage``: its arguments; ``needs``: whether it makes sense without any. ``run`` gets the rest of the line."""

    name: str
    usage: str
    help: str
    run: Callable[[KvnotesApp, str], None]
    names: Names = Names.NOTHING
    needs: bool = False


def find_command(line: str, commands: Sequence[Command]) -> tuple[Command, str]:
    """The command that ``/name rest`` means, and the rest. Raises UsageError."""
    name, _, rest = line.removeprefix("/").partition(" ")
    for command in commands:
        if command.name == name:
            rest = rest.strip()
            if command.needs and not rest:
                raise UsageError(f"/{name} needs more: /{name} {command.usage}")
            return command, rest
    near = [command.name for command in commands if name and command.name.startswith(name)]
    hint = f"Did you mean /{near[0]}?" if near else "/help lists what there is."
    raise UsageError(f"There is no command /{name}. {hint}")


def split_assignment(text: str) -> tuple[str, str]:
    """``name = value``. Raises UsageError."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"{text!r} is not NAME = VALUE.")
    return name.strip(), value.strip()
