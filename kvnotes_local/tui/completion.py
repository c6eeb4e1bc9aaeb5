"""What a line that begins with a slash may become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.tui.commands import LEVEL_OPTION, Command, Names, named
from kvnotes_local.tui.state import SessionState
from kvnotes_local.tui.widgets.composer import Completion


def complete(
    line: str, commands: Sequence[Command[Any]], session: SessionState, presets: Sequence[str]
) -> list[Completion]:
    """Completions of the command's name, then of what its first argument names."""
    typed = line.removeprefix("/")
    by_name = [one for one in commands if one.name.startswith(typed)]
    command = named(line, commands)
    if command is None or by_name:
        return [
            Completion(f"/{one.name} " if one.usage else f"/{one.name}", f"/{one.name} {one.usage}".rstrip(), one.help)
            for one in by_name
        ]
    rest = typed[len(command.name) :].lstrip()
    if LEVEL_OPTION in f" {rest}" and command.names is Names.FIELDS:
        before, _, level = rest.rpartition(" ")
        return [
            Completion(f"/{command.name} {before} {one.value}", one.value, "for this edit only")
            for one in EditLevel
            if one.value.startswith(level) and one.value != level
        ]
    equals = " = " if command.names is Names.FIELDS else ""
    return [
        Completion(f"/{command.name} {one}{equals}", one, help_)
        for one, help_ in names(command.names, session, presets)
        if one.lower().startswith(rest.lower()) and one != rest
    ]


def names(which: Names, session: SessionState, presets: Sequence[str]) -> list[tuple[str, str]]:
    """Names of a kind with a word about each."""
    chat = session.chat
    match which:
        case Names.SKILLS:
            fingerprint = session.info.fingerprint if session.info is not None else None
            return [(one.name, f"{one.status(fingerprint)}: {one.description}") for one in session.skills]
        case Names.CHAT_SKILLS:
            return [(name, "in the chat") for name in (chat.skills if chat is not None else ())]
        case Names.FIELDS:
            return [(name, f"now {value}") for name, value in (chat.fields.items() if chat is not None else ())]
        case Names.MODELS:
            return [(one.name, f"{one.arch} {one.quantization}") for one in session.models or () if not one.problem]
        case Names.PRESETS:
            return [(name, "") for name in presets]
        case Names.LEVELS:
            return [(level.value, "") for level in EditLevel]
        case Names.FORMATS:
            return [("md", "Markdown"), ("json", "JSON")]
        case _:
            return []
