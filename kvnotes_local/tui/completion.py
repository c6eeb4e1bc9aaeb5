"""What a line that begins with a slash may become."""

from __future__ import annotations

from collections.abc import Sequence

from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.tui.commands import Command, Names
from kvnotes_local.tui.state import SessionState
from kvnotes_local.tui.widgets.composer import Completion


def complete(line: str, commands: Sequence[Command], session: SessionState, presets: Sequence[str]) -> list[Completion]:
    """Completions of the command's name, then of what its first argument names."""
    name, space, rest = line.removeprefix("/").partition(" ")
    if not space:
        return [
            Completion(f"/{one.name} " if one.usage else f"/{one.name}", f"/{one.name} {one.usage}".rstrip(), one.help)
            for one in commands
            if one.name.startswith(name)
        ]
    command = next((one for one in commands if one.name == name), None)
    if command is None:
        return []
    rest = rest.lstrip()
    named = names(command.names, session, presets)
    return [
        Completion(f"/{name} {one}{' = ' if command.names is Names.FIELDS else ''}", one, help_)
        for one, help_ in named
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
