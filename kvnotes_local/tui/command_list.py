"""The commands themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

from kvnotes_local.contract.generation import Sampling
from kvnotes_local.errors import UsageError
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.notebook.segment import Kind
from kvnotes_local.tui.commands import LEVEL_OPTION, Command, Names, split_assignment
from kvnotes_local.tui.host import Host
from kvnotes_local.tui.skill_commands import SKILL_COMMANDS
from kvnotes_local.tui.workbench.answer_requests import Resend
from kvnotes_local.tui.workbench.chat_requests import (
    ChangeSampling,
    DropSkill,
    ForkChat,
    NewChat,
    Redo,
    SetField,
    SetSystem,
    SpliceSkill,
    Undo,
)
from kvnotes_local.tui.workbench.evaluation_requests import RunBench, RunProbe, VerifyChat, VerifySkill
from kvnotes_local.tui.workbench.model_requests import LoadModel
from kvnotes_local.tui.workbench.skill_requests import CompileSkill
from kvnotes_local.tui.workbench.store_requests import ExportChat, RenameChat


def _skill(app: Host, rest: str, *, read: bool = False) -> None:
    match = re.fullmatch(r"(\S+)(?:\s+before\s+(\d+))?", rest)
    if match is None:
        raise UsageError(f"{rest!r} is not NAME or NAME before SEGMENT.")
    app.submit_idle(SpliceSkill(match[1], None if match[2] is None else int(match[2]), read))


def _set(app: Host, rest: str) -> None:
    assignment, option, level = rest.partition(LEVEL_OPTION)
    name, value = split_assignment(assignment)
    app.submit_idle(SetField(name, value, _edit_level(level.strip()) if option else app.settings.edit_level))


def _level(app: Host, rest: str) -> None:
    app.set_edit_level(_edit_level(rest))


def _edit_level(name: str) -> EditLevel:
    try:
        return EditLevel(name)
    except ValueError:
        raise UsageError(f"There is no edit level {name!r}. There are: {', '.join(EditLevel)}.") from None


def _fork(app: Host, rest: str) -> None:
    if rest and not rest.isdigit():
        raise UsageError(f"{rest!r} is no number of a segment; /fork alone forks here.")
    app.submit_idle(ForkChat(int(rest) if rest else None))


def _again(app: Host, _: str) -> None:
    chat = app.session.chat
    segments = chat.segments if chat is not None else ()
    at = next((at for at in range(len(segments) - 1, -1, -1) if segments[at].kind is Kind.USER), None)
    if at is None:
        raise UsageError("Nothing was asked yet.")
    app.submit_idle(Resend(at))


def _model(app: Host, rest: str) -> None:
    if not rest:
        app.action_go("models")
        return
    found = [one for one in app.session.models or () if one.name.lower().startswith(rest.lower()) and not one.problem]
    if not found:
        raise UsageError(f"There is no model {rest!r}. F5 shows what was found.")
    app.need_idle()
    app.submit(LoadModel(found[0].path, app.params))


def _params(app: Host, rest: str) -> None:
    chat = app.session.chat
    if chat is None:
        raise UsageError("No model is loaded. F5 shows which there are.")
    sampling, max_tokens = chat.params.sampling, chat.params.max_tokens
    if not rest:
        app.tell(params_text(sampling, max_tokens))
        return
    for word in rest.split():
        name, value = split_assignment(word)
        if name == "max_tokens":
            max_tokens = int(_number(name, value))
        else:
            sampling = changed_sampling(sampling, name, value)
    app.submit_idle(ChangeSampling(sampling, max_tokens))
    app.tell(params_text(sampling, max_tokens))


def params_text(sampling: Sampling, max_tokens: int) -> str:
    """Sampling parameters in one line."""
    parts = [f"{one.name} = {getattr(sampling, one.name):g}" for one in fields(sampling) if one.name != "grammar"]
    return ", ".join([*parts, f"max_tokens = {max_tokens}"])


def changed_sampling(sampling: Sampling, name: str, value: str) -> Sampling:
    """With one parameter changed. Raises UsageError."""
    known = [one.name for one in fields(Sampling) if one.name != "grammar"]
    if name not in known:
        raise UsageError(f"There is no parameter {name!r}. There are: {', '.join(known)}, max_tokens.")
    number = _number(name, value)
    return replace(sampling, **{name: type(getattr(Sampling(), name))(number)})


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise UsageError(f"{name} has to be a number, not {value!r}.") from None
    if not 0 <= number < 1e9:
        raise UsageError(f"{name} has to be 0 or more, not {value}.")
    return number


def _preset(app: Host, rest: str) -> None:
    presets = app.settings.presets
    if rest not in presets:
        raise UsageError(f"There is no preset {rest!r}. There are: {', '.join(presets)}.")
    app.submit_idle(ChangeSampling(presets[rest]))
    app.tell(f"Answers of this chat are drawn with {rest} from now on.")


def _export(app: Host, rest: str) -> None:
    app.need_chat()
    chat = app.session.chat
    assert chat is not None
    if rest in {"", "md", "json"}:
        to = Path.cwd() / f"chat-{chat.id}.{rest or 'md'}"
    else:
        to = Path(rest).expanduser()
    app.submit(ExportChat(chat.id, to))


def _rename(app: Host, rest: str) -> None:
    app.need_chat()
    assert app.session.chat is not None
    app.submit(RenameChat(app.session.chat.id, rest))


def _verify(app: Host, rest: str) -> None:
    app.submit_idle(VerifySkill(rest) if rest else VerifyChat())
    if not rest:
        app.action_go("bench")


def _bench(app: Host, _: str) -> None:
    app.submit_idle(RunBench())
    app.action_go("bench")


def _probe(app: Host, _: str) -> None:
    app.submit_idle(RunProbe())
    app.action_go("bench")


def _go(mode: str) -> Callable[[Host, str], None]:
    return lambda app, _: app.action_go(mode)


def _quit(app: Host, _: str) -> None:
    app.call_later(app.action_quit)


def _new(app: Host, rest: str) -> None:
    app.submit_idle(NewChat(rest or None))
    app.action_go("chat")


def _system(app: Host, rest: str) -> None:
    if rest:
        app.submit_idle(SetSystem(rest))
        return
    app.need_chat()
    chat = app.session.chat
    assert chat is not None
    text = next((segment.text for segment in chat.segments if segment.kind is Kind.SYSTEM), "")
    app.write_in_composer(f"/system {text}")


COMMANDS: tuple[Command[Host], ...] = (
    Command("skill", "NAME [before SEGMENT]", "splice a skill into the chat", _skill, Names.SKILLS, needs=True),
    Command(
        "read",
        "NAME [before SEGMENT]",
        "let the model read a skill instead",
        lambda app, rest: _skill(app, rest, read=True),
        Names.SKILLS,
        needs=True,
    ),
    Command(
        "drop",
        "NAME",
        "take a skill out of the chat",
        lambda app, rest: app.submit_idle(DropSkill(rest)),
        Names.CHAT_SKILLS,
        needs=True,
    ),
    Command(
        "set",
        f"FIELD = VALUE [{LEVEL_OPTION.strip()} LEVEL]",
        "give a field another value",
        _set,
        Names.FIELDS,
        needs=True,
    ),
    Command("level", "LEVEL", "how far edits of fields go", _level, Names.LEVELS, needs=True),
    Command("fork", "[SEGMENT]", "go on in a copy of the chat", _fork),
    Command("undo", "", "take the last change back", lambda app, _: app.submit_idle(Undo())),
    Command("redo", "", "make it again", lambda app, _: app.submit_idle(Redo())),
    Command("again", "", "ask the last question again", _again),
    Command("stop", "", "stop what is running", lambda app, _: app.action_stop()),
    Command("new", "[SYSTEM TEXT]", "begin a chat", _new),
    Command("system", "[TEXT]", "another system text, as if the chat had begun so", _system),
    Command("preset", "NAME", "draw answers with a preset of the settings", _preset, Names.PRESETS, needs=True),
    Command("export", "[md | json | FILE]", "write the chat to a file", _export, Names.FORMATS),
    Command("rename", "TITLE", "give the chat another title", _rename, needs=True),
    Command("params", "[NAME=VALUE …]", "how answers are drawn", _params),
    Command("model", "[NAME]", "load another model", _model, Names.MODELS),
    Command(
        "compile",
        "NAME",
        "compile a skill for this model",
        lambda app, rest: app.submit_idle(CompileSkill(rest)),
        Names.SKILLS,
        needs=True,
    ),
    *SKILL_COMMANDS,
    Command("chats", "", "stored chats (F4)", _go("chats")),
    Command("settings", "", "settings and keys (F7)", _go("settings")),
    Command("log", "", "the logs (F8)", _go("log")),
    Command("help", "", "signs, commands and keys (F1)", _go("help")),
    Command("verify", "[SKILL]", "a skill, or this chat, against reading it", _verify, Names.SKILLS),
    Command("bench", "", "how fast splicing is here (F6)", _bench),
    Command("probe", "", "which rows carry a decision (F6)", _probe),
    Command("safer", "", "restart the engine safer, when it died twice (F9)", lambda app, _: app.restart_safer()),
    Command("quit", "", "leave; everything is kept", _quit),
)
