"""``kvnotes ask``: one turn without a screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from kvnotes_local.cli.options import DataDirOption, RepairOption, SkillsDirOption, with_options
from kvnotes_local.cli.output import Output
from kvnotes_local.errors import Cancelled, Interrupted, KvnotesError, UsageError
from kvnotes_local.notebook.edit import EditLevel, EditResult
from kvnotes_local.notebook.on_full import OnFull
from kvnotes_local.session.engine_options import EngineOptions
from kvnotes_local.session.places import Places
from kvnotes_local.session.quantities import human_ms
from kvnotes_local.spelling import composed
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from kvnotes_local.contract.model_info import ModelInfo
    from kvnotes_local.notebook.notebook import Notebook
    from kvnotes_local.notebook.proof import Proof
    from kvnotes_local.notebook.reply import Reply
    from kvnotes_local.notebook.store.params import ChatParams
    from kvnotes_local.notebook.stored_chat import StoredChat


def register(app: typer.Typer) -> None:
    app.command("ask")(with_options(ask))


def ask(
    text: Annotated[str, typer.Argument(help="The question.")],
    skill: Annotated[
        list[str] | None, typer.Option("--skill", "-s", help="Splice this skill first; repeatable.")
    ] = None,
    chat: Annotated[str | None, typer.Option("--chat", help="Go on with this stored chat; 'new' starts one.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="System text; default: the model's own.")] = None,
    set_field: Annotated[
        list[str] | None, typer.Option("--set", help="FIELD=VALUE of a skill or chat; repeatable.")
    ] = None,
    level: Annotated[
        EditLevel, typer.Option("--level", help="How far --set goes in a chat.")
    ] = EditLevel.FIELD_ERRATUM,
    read_skills: Annotated[
        bool, typer.Option("--read-skills", help="Let the model read skills, not splice them.")
    ] = False,
    repair: RepairOption = None,
    splice_anyway: Annotated[
        bool, typer.Option("--splice-anyway", help="Splice also what was measured to be worse than reading it.")
    ] = False,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens; default: 512.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0.0, help="0 (default): always the likeliest token.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="For temperatures above 0.")] = None,
    on_full: Annotated[OnFull | None, typer.Option("--on-full", help="When the context is full.")] = None,
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
    from kvnotes_local.notebook.notebook import Notebook
    from kvnotes_local.notebook.store.params import ChatParams
    from kvnotes_local.notebook.stored_chat import open_chat

    if not text.strip():
        raise UsageError("The question is empty.")
    values = fields(set_field or [])
    with open_session(options, output, skills_dirs=skills_dir or []) as session:
        stored = None
        notices: list[str] = []

        def on_notice(text: str) -> None:
            notices.append(text)
            output.note(text)

        if session.engine.info.format_notice is not None:
            on_notice(session.engine.info.format_notice)
        how = {
            "library": session.library,
            "compiler": session.compiler,
            "system": system,
            "on_notice": on_notice,
            "speed": session.speed,
        }
        params = ChatParams()
        if chat is not None:
            store = Places.usual(data=data_dir).chat_store()
            stored = open_chat(store, session.engine, chat, values=values, on_full=on_full, **how)  # type: ignore[arg-type]
            notebook, params = stored.notebook, stored.params
            if stored.restored is not None:
                output.note("Chat restored from its saved state." if stored.restored else "Chat read again.")
        else:
            notebook = Notebook(session.engine, values=values, on_full=on_full or params.on_full, **how)  # type: ignore[arg-type]
        params = _changed(params, temperature, seed, max_tokens)
        if stored is not None:
            stored.change_params(params)
        with _left_in_order(stored, output):
            known = set(notebook.fields)
            # All names and texts first: what is refused must not leave half of a chat behind.
            for one_text in (text, *values.values()):
                session.engine.tokenize(one_text)
            wanted = [session.library.get(name) for name in skill or []]
            fields_there = list(dict.fromkeys([*notebook.fields, *(field for one in wanted for field in one.fields)]))
            unknown = [name for name in values if name not in fields_there]
            if unknown:
                raise UsageError(
                    f"There is no field {unknown[0]!r}. The fields are: {', '.join(fields_there) or 'none'}."
                )
            for one in wanted:
                with compile_progress(output, f"{'Reading' if read_skills else 'Compiling'} {one.name}") as progress:
                    notebook.splice(
                        one.name,
                        repair=repair,
                        values={name: value for name, value in values.items() if name not in known},
                        read=read_skills,
                        heed_verdict=not splice_anyway,
                        progress=progress,
                    )
            edits = [
                notebook.set(name, value, level=level)
                for name, value in values.items()
                if name in known and notebook.fields[name] != value
            ]
            reply = notebook.ask(
                text,
                sampling=params.sampling,
                max_tokens=params.max_tokens,
                on_text=lambda piece: output.text(piece, end=""),
            )
            output.text()
            proof = reply.proof
            edits = [edit for edit in edits if edit.level is not EditLevel.AUTO] + list(reply.edits)
            for edit in edits:
                output.note(f"{edit.field}: {edit.level.value}, {counted(edit.decoded, 'token')} ({edit.reason})")
            output.note(
                f"{_where_from(proof)} · first token after {human_ms(proof.change_ms + proof.ttft_ms)}"
                + (f" · chat {stored.id}" if stored else "")
            )
            output.document(_document(session.engine.info, notebook, reply, edits, stored, notices))
        if reply.stop_reason is StopReason.STOPPED:
            raise Cancelled("Stopped.")


@contextmanager
def _left_in_order(stored: StoredChat | None, output: Output) -> Iterator[None]:
    """Save the chat's state at the end, also where an error, a signal or a reader that has gone ends the work."""
    from kvnotes_local.notebook.store.chats import ChatChangedError

    try:
        yield
    except (ChatChangedError, Interrupted):  # the state would be of an older chat; nobody wants to wait
        raise
    except BaseException:
        if stored is not None:
            with suppress(KvnotesError):
                stored.leave()
        raise
    if stored is not None and not stored.leave():
        output.note("The chat's state was not saved for lack of room; next time it is read again.")


def _changed(params: ChatParams, temperature: float | None, seed: int | None, max_tokens: int | None) -> ChatParams:
    """The parameters with what was given on the command line."""
    sampling = params.sampling
    if temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    if seed is not None:
        sampling = replace(sampling, seed=seed)
    return replace(params, sampling=sampling, max_tokens=max_tokens or params.max_tokens)


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
    notebook: Notebook,
    reply: Reply,
    edits: Sequence[EditResult],
    stored: StoredChat | None,
    notices: Sequence[str],
) -> dict[str, object]:
    proof = reply.proof
    return {
        "reply": reply.text,
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
        "edits": edits,
        "notices": notices,
        "model": info.name,
        "class": info.model_class,
        "segments": [
            {"kind": s.kind, "name": s.name, "tokens": s.n_tokens, "freshness": s.freshness} for s in notebook.segments
        ],
    }


def fields(pairs: list[str]) -> dict[str, str]:
    """Values given as FIELD=VALUE. Raises UsageError."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set {pair!r} is not FIELD=VALUE.")
        values[composed(name.strip())] = value.strip()
    return values
