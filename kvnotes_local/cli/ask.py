"""``kvnotes ask``: one turn without a screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kvnotes_local.cli.options import DataDirOption, RepairOption, SkillsDirOption, with_options
from kvnotes_local.cli.output import Output
from kvnotes_local.errors import Cancelled, UsageError
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.notebook.on_full import OnFull
from kvnotes_local.session.engine_options import EngineOptions
from kvnotes_local.session.places import Places
from kvnotes_local.session.quantities import human_ms
from kvnotes_local.spelling import composed
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from kvnotes_local.contract.model_info import ModelInfo
    from kvnotes_local.notebook.proof import Proof
    from kvnotes_local.session.question import Answer, OpenedChat, Question


def register(app: typer.Typer) -> None:
    app.command("ask")(with_options(ask))


@dataclass(frozen=True)
class TurnOptions:
    """What is asked, and of which chat."""

    skill: Annotated[list[str] | None, typer.Option("--skill", "-s", help="Splice this skill first; repeatable.")] = (
        None
    )
    chat: Annotated[str | None, typer.Option("--chat", help="Go on with this stored chat; 'new' starts one.")] = None
    system: Annotated[str | None, typer.Option("--system", help="System text; default: the model's own.")] = None
    set_field: Annotated[
        list[str] | None, typer.Option("--set", help="FIELD=VALUE of a skill or chat; repeatable.")
    ] = None
    level: Annotated[EditLevel, typer.Option("--level", help="How far --set goes in a chat.")] = EditLevel.FIELD_ERRATUM
    read_skills: Annotated[bool, typer.Option("--read-skills", help="Let the model read skills, not splice them.")] = (
        False
    )
    repair: RepairOption = None
    splice_anyway: Annotated[
        bool, typer.Option("--splice-anyway", help="Splice also what was measured to be worse than reading it.")
    ] = False


@dataclass(frozen=True)
class DrawingOptions:
    """How the answer is drawn; a chat keeps it."""

    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens; default: 512.")
    ] = None
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0.0, help="0 (default): always the likeliest token.")
    ] = None
    seed: Annotated[int | None, typer.Option("--seed", help="For temperatures above 0.")] = None
    on_full: Annotated[OnFull | None, typer.Option("--on-full", help="When the context is full.")] = None


def ask(
    text: Annotated[str, typer.Argument(help="The question.")],
    turn: TurnOptions,
    drawing: DrawingOptions,
    skills_dir: SkillsDirOption = None,
    data_dir: DataDirOption = None,
    *,
    options: EngineOptions,
    output: Output,
) -> None:
    """Ask one question, with skills spliced in front of it. A chat keeps --temperature, --seed, --max-tokens and --on-full."""
    from kvnotes_local.cli.progress import compile_progress
    from kvnotes_local.cli.session import open_session
    from kvnotes_local.contract.generation import StopReason
    from kvnotes_local.notebook.listening import SaidText
    from kvnotes_local.session import question as asking

    question = _question(text, turn)
    wanted = asking.Drawing(
        temperature=drawing.temperature,
        seed=drawing.seed,
        max_tokens=drawing.max_tokens,
        on_full=drawing.on_full,
    )
    notices: list[str] = []

    def on_notice(notice: str) -> None:
        notices.append(notice)
        output.note(notice)

    with open_session(options, output, skills_dirs=skills_dir or []) as session:
        info = session.engine.info
        if info.format_notice is not None:
            on_notice(info.format_notice)
        how = session.chat_options(system=turn.system, values=question.values, on_notice=on_notice)
        chat = asking.open_for_question(session, turn.chat, wanted, how, store=Places.usual(data=data_dir).chat_store)
        if chat.stored is not None and chat.stored.restored is not None:
            output.note("Chat restored from its saved state." if chat.stored.restored else "Chat read again.")
        with asking.left_in_order(chat, output.note):
            answer = asking.ask(
                question,
                chat,
                session,
                on_text=SaidText(
                    info.chat_format, lambda piece: output.text(piece, end=""), lambda: output.note("Thinking …")
                ),
                skill_progress=lambda name: compile_progress(
                    output, f"{'Reading' if turn.read_skills else 'Compiling'} {name}"
                ),
            )
            _tell(answer, chat, output)
            output.document(_document(info, chat, answer, notices))
        if answer.reply.stop_reason is StopReason.STOPPED:
            raise Cancelled("Stopped.")


def _question(text: str, turn: TurnOptions) -> Question:
    from kvnotes_local.session.question import Question

    return Question(
        text=text,
        skills=turn.skill or (),
        values=_fields(turn.set_field or []),
        level=turn.level,
        read_skills=turn.read_skills,
        repair=turn.repair,
        splice_anyway=turn.splice_anyway,
    )


def _tell(answer: Answer, chat: OpenedChat, output: Output) -> None:
    """What the answer cost, behind its text."""
    output.text()
    for edit in answer.edits:
        output.note(f"{edit.field}: {edit.level.value}, {counted(edit.decoded, 'token')} ({edit.reason})")
    proof = answer.reply.proof
    output.note(
        f"{_where_from(proof)} · first token after {human_ms(proof.change_ms + proof.ttft_ms)}"
        + (f" · chat {chat.stored.id}" if chat.stored else "")
    )


def _where_from(proof: Proof) -> str:
    """How many tokens came from where; what there is none of is left out."""
    counts = {
        "spliced": proof.spliced,
        "repaired": proof.repaired,
        "moved": proof.moved,
        "reused": proof.reused,
        "prefilled": proof.prefilled,
    }
    return " · ".join(f"{count:,} {what}" for what, count in counts.items() if count or what == "prefilled")


def _document(
    info: ModelInfo,
    chat: OpenedChat,
    answer: Answer,
    notices: Sequence[str],
) -> dict[str, object]:
    reply, stored = answer.reply, chat.stored
    proof = reply.proof
    return {
        "reply": reply.text,
        "reasoning": reply.segment.reasoning,
        "stop_reason": reply.stop_reason,
        "tokens": {
            "prefilled": proof.prefilled,
            "reused": proof.reused,
            "moved": proof.moved,
            "spliced": proof.spliced,
            "repaired": proof.repaired,
            "generated": proof.generated,
        },
        "ttft_ms": round(proof.change_ms + proof.ttft_ms, 2),
        "recompute_ms": proof.recompute_ms,
        "chat_id": stored.id if stored else None,
        "restored": stored.restored if stored else None,
        "edits": answer.edits,
        "notices": notices,
        "model": info.name,
        "class": info.model_class,
        "segments": [
            {"kind": s.kind, "name": s.name, "tokens": s.n_tokens, "freshness": s.freshness}
            for s in chat.notebook.segments
        ],
    }


def _fields(pairs: list[str]) -> dict[str, str]:
    """Values given as FIELD=VALUE. Raises UsageError."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set {pair!r} is not FIELD=VALUE.")
        values[composed(name.strip())] = value.strip()
    return values
