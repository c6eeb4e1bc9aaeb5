"""The commands for skills as files: beginning one, sharing it, and making room."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from kvnotes_local.errors import UsageError
from kvnotes_local.session.quantities import parse_age, parse_bytes
from kvnotes_local.tui.commands import Command, Names
from kvnotes_local.tui.host import Host
from kvnotes_local.tui.workbench.library_requests import ExportSkill, ImportSkill, MakeRoom, NewSkill, RemoveCompiled


def _new(app: Host, rest: str) -> None:
    name, *more = rest.split()
    if more and (len(more) != 2 or more[0] != "like"):
        raise UsageError(f"{rest!r} is not NAME or NAME like SKILL.")
    app.submit(NewSkill(name, more[1] if more else None))


def _remove(app: Host, rest: str) -> None:
    app.submit(RemoveCompiled(None if rest == "all" else rest))


def _make_room(app: Host, rest: str) -> None:
    max_bytes: int | None = None
    older_than: timedelta | None = None
    for word in rest.split():
        with suppress(UsageError):
            max_bytes = parse_bytes(word)
            continue
        with suppress(UsageError):
            older_than = parse_age(word)
            continue
        raise UsageError(f"{word!r} is neither a size as 2G nor an age as 30d.")
    app.submit(MakeRoom(max_bytes, older_than))


def _export(app: Host, rest: str) -> None:
    name, _, file = rest.partition(" ")
    info = app.session.info
    to = Path(file.strip()).expanduser() if file.strip() else None
    app.submit(ExportSkill(name, info.fingerprint if info is not None else None, to))


def _import(app: Host, rest: str) -> None:
    app.submit(ImportSkill(Path(rest).expanduser()))


SKILL_COMMANDS: tuple[Command[Host], ...] = (
    Command("skills", "", "the skills (F3)", lambda app, _: app.action_go("skills")),
    Command("skills new", "NAME [like SKILL]", "begin a skill of your own", _new, needs=True),
    Command("skills remove", "NAME | all", "delete what was compiled of a skill", _remove, Names.SKILLS, needs=True),
    Command("skills gc", "[SIZE] [AGE]", "delete artifacts that nobody needs", _make_room),
    Command("skills export", "NAME [FILE]", "a skill with its artifact as a file", _export, Names.SKILLS, needs=True),
    Command("skills import", "FILE", "take in such a file", _import, needs=True),
)
