"""``kvnotes demo``: compile a sample skill, splice it into a chat under way, ask, and show the proof."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kvnotes_local.cli.options import RepairOption, with_options
from kvnotes_local.cli.output import Output
from kvnotes_local.session.engine_options import EngineOptions, KvType
from kvnotes_local.session.quantities import human_bytes, human_ms
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from kvnotes_local.contract.model_info import ModelInfo
    from kvnotes_local.evaluation.side_by_side import SideBySide
    from kvnotes_local.notebook.reply import Reply
    from kvnotes_local.session.session import Session
    from kvnotes_local.skills.compiler import CompiledSkill

SKILL = "refund-policy"
CHAT = (
    (
        "Good morning! I work in customer support. Today I answer letters from people who bought something from us.",
        "Good morning! I am happy to help. Send me the questions one after the other, and tell me which rules I have to follow.",
    ),
    (
        "Thank you. The first letter comes from a lady who bought a table lamp and does not like the color.",
        "I see. Before I answer her I should know the rules of your shop for returns.",
    ),
)
QUESTION = "Now answer from the policy: how many days does she have to return the lamp?"
ANSWER_TOKENS = 48


def register(app: typer.Typer) -> None:
    app.command("demo")(with_options(demo))


def demo(
    question: Annotated[str, typer.Option("--ask", help="What to ask about the refund policy.")] = QUESTION,
    repair: RepairOption = None,
    *,
    options: EngineOptions,
    output: Output,
) -> None:
    """Splice a precompiled skill into a chat, ask about it, and compare with reading it the ordinary way."""
    from kvnotes_local.cli.session import open_session

    with open_session(options, output, n_ctx=4096) as session:
        played = _play(session, question, repair, output)
    _show(played, output)
    output.document(_document(played, question, options.kv_type))


@dataclass(frozen=True)
class _Played:
    """What was compiled, said and compared. ``n_before``: tokens of the chat before the skill."""

    info: ModelInfo
    compiled: CompiledSkill
    n_before: int
    reply: Reply
    sides: SideBySide


def _play(session: Session, question: str, repair: int | None, output: Output) -> _Played:
    """Compile, chat, splice and ask, and then read it all the ordinary way."""
    from kvnotes_local.evaluation.side_by_side import compare_with_recompute
    from kvnotes_local.notebook.notebook import Notebook

    info = session.engine.info
    output.text(f"Model: {info.name} ({info.description}), class {info.model_class.value}, KV {info.type_k.name}")
    compiled = _compile(session, output)
    notebook = Notebook(session.engine, library=session.library, compiler=session.compiler)
    for user, assistant in CHAT:
        notebook.say(user, assistant)
    notebook.read()
    n_before = len(notebook.tokens)
    output.text(
        f"Chat: {len(CHAT)} exchanges, {counted(n_before, 'token')}, already read. Splicing the skill behind it."
    )
    notebook.forget_cost()
    notebook.splice(SKILL, repair=repair)
    output.text(f"\n> {question}\n")
    reply = notebook.ask(
        question, max_tokens=ANSWER_TOKENS, on_text=lambda piece: output.text(piece, end=""), keep_logits=True
    )
    output.text("\n")
    tokens = notebook.tokens
    n_answer = len(tokens) - reply.segment.n_tokens + reply.segment.content_start
    output.text("The same question again with the skill read by the model, for comparison …")
    notebook.close()  # the context need not hold both
    sides = compare_with_recompute(session.engine, tokens, n_before, n_answer, reply)
    return _Played(info, compiled, n_before, reply, sides)


def _compile(session: Session, output: Output) -> CompiledSkill:
    from kvnotes_local.cli.progress import compile_progress

    with compile_progress(output, f"Compiling {SKILL}") as progress:
        compiled = session.compiler.compile(session.library.get(SKILL), progress=progress)
    made = f"compiled in {compiled.seconds:.1f} s" if compiled.seconds else "compiled before"
    output.text(
        f"Skill: {SKILL}, {counted(compiled.n_tokens, 'token')}, {made}, {human_bytes(compiled.n_bytes)} on disk"
    )
    return compiled


def _show(played: _Played, output: Output) -> None:
    sides = played.sides
    splice, recompute = sides.splice, sides.recompute
    output.text(f"\n{recompute.text}\n")
    output.table(
        ["", "prefilled", "spliced", "repaired", "first token after"],
        [
            ["read the skill", f"{recompute.prefilled:,}", "0", "0", human_ms(recompute.ttft_ms)],
            [
                "splice it",
                f"{splice.prefilled:,}",
                f"{splice.spliced:,}",
                f"{splice.repaired:,}",
                human_ms(splice.ttft_ms),
            ],
        ],
        right=(1, 2, 3, 4),
    )
    same = (
        f"the same in all of {counted(sides.n_compared, 'token')}"
        if sides.first_difference is None
        else f"the first {sides.first_difference} of {counted(sides.n_compared, 'token')} are the same"
    )
    output.text(
        f"\n{sides.speedup:.1f}× faster to the first token · logits' cosine {sides.cosine:.4f} · answers: {same}"
    )


def _document(played: _Played, question: str, kv_type: KvType) -> dict[str, object]:
    compiled, reply, sides = played.compiled, played.reply, played.sides
    splice, recompute = sides.splice, sides.recompute
    return {
        "model": played.info.name,
        "class": played.info.model_class,
        "kv_type": kv_type,
        "skill": SKILL,
        "n_skill_tokens": compiled.n_tokens,
        "compile_seconds": round(compiled.seconds, 3),
        "status": compiled.status,
        "question": question,
        "reply": reply.text,
        "tokens": {
            "prefilled": splice.prefilled,
            "reused": played.n_before,
            "spliced": splice.spliced,
            "repaired": splice.repaired,
            "generated": reply.proof.generated,
        },
        "recompute": {
            "reply": recompute.text,
            "prefilled": recompute.prefilled,
            "ttft_ms": round(recompute.ttft_ms, 2),
        },
        "ttft_ms": round(splice.ttft_ms, 2),
        "speedup": round(sides.speedup, 2),
        "cosine": round(sides.cosine, 6),
        "first_difference": sides.first_difference,
        "n_compared": sides.n_compared,
    }
