"""``kvnotes verify``: is splicing as good as reading, for this model and these skills?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvnotes_local.cli.options import (
    DataDirOption,
    EngineOptions,
    SkillsDirOption,
    with_options,
)
from kvnotes_local.cli.output import Output
from kvnotes_local.errors import UsageError
from kvnotes_local.skills.leads import DEFAULT_N_LEADS
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from kvnotes_local.evaluation.fidelity import Fidelity
    from kvnotes_local.evaluation.gate import GateResult, Trial

DEFAULT_SKILL = "night-clerk"
GATE_FAILED = 3


def register(app: typer.Typer) -> None:
    app.command("verify")(with_options(verify))


def verify(
    names: Annotated[list[str] | None, typer.Argument(help=f"Skills to measure; default: {DEFAULT_SKILL}.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every skill that was found.")] = False,
    together: Annotated[
        str | None, typer.Option("--together", help="A,B,C: these skills, spliced one behind the other.")
    ] = None,
    chat: Annotated[
        str | None, typer.Option("--chat", help="Measure in this stored chat, not in bundled ones.")
    ] = None,
    repair: Annotated[
        list[int] | None, typer.Option("--repair", min=0, help="Seam to try; repeatable. Default: 0, 2, 8, 32.")
    ] = None,
    positions: Annotated[int, typer.Option("--positions", min=2, help="Tokens of each answer to compare.")] = 32,
    questions: Annotated[int, typer.Option("--questions", min=1, help="Questions of each skill to ask.")] = 4,
    skills_dir: SkillsDirOption = None,
    data_dir: DataDirOption = None,
    *,
    options: EngineOptions,
    output: Output,
) -> None:
    """Measure splicing against reading, relative to how far reading moves from itself, and keep the verdict.

    Exit code 3 when a gate does not hold: such a skill is then read instead of spliced.
    """
    from kvnotes_local.cli.chats import chat_store
    from kvnotes_local.cli.progress import step_progress
    from kvnotes_local.cli.session import open_session
    from kvnotes_local.evaluation.questions import chat_context
    from kvnotes_local.evaluation.verification import Effort, verify_skill, verify_together

    joint = [name.strip() for name in (together or "").split(",") if name.strip()]
    if together is not None and (len(joint) < 2 or names or everything):
        raise UsageError("--together wants two or more skills, separated by commas, and no others beside it.")
    with open_session(options, output, skills_dirs=skills_dir or []) as session:
        engine = session.engine
        wanted = joint or (
            [skill.name for skill in session.library.skills]
            if everything
            else list(dict.fromkeys(names or [DEFAULT_SKILL]))
        )
        skills = [session.library.get(name) for name in wanted]
        contexts = None
        if chat is not None:
            stored = chat_store(data_dir).load(chat)
            if stored.summary.model_fingerprint != engine.info.fingerprint:
                raise UsageError(
                    f"The chat {chat} was held with {stored.summary.model_name}; use --model for that one."
                )
            contexts = (chat_context(chat, stored.segments, wanted),)
        effort = Effort(contexts, tuple(repair) if repair else None, positions, questions)
        other = session.open_other
        output.text(f"Model: {engine.info.name}, KV {engine.info.type_k.name}, {engine.info.llama_cpp_version}")
        results: list[tuple[str, GateResult]] = []
        with step_progress(output) as step:
            if joint:
                result = verify_together(engine, session.compiler, skills, other=other, effort=effort, step=step)
                results.append((", ".join(wanted), result))
            else:
                for skill in skills:

                    def tell(what: str, name: str = skill.name) -> None:
                        step(f"{name}: {what}")

                    verdicts = session.verdicts if chat is None else None
                    result = verify_skill(
                        engine, session.compiler, skill, verdicts, other=other, effort=effort, step=tell
                    )
                    results.append((skill.name, result))
    for name, result in results:
        _show(output, name, result, kept=chat is None and not joint)
    output.document(
        {
            "model": engine.info.name,
            "kv_type": options.kv_type,
            "build": engine.info.llama_cpp_version,
            "results": [_entry(name, result) for name, result in results],
        }
    )
    if not all(result.passed for _, result in results):
        raise typer.Exit(GATE_FAILED)


def _show(output: Output, name: str, result: GateResult, *, kept: bool) -> None:
    noise = result.noise.fidelity
    best = result.best
    n_tokens = sum(skill.n_tokens for skill in result.skills)
    output.text(f"\n{name}: {counted(n_tokens, 'token')}, {counted(noise.n_positions, 'position')}")
    rows = [
        [
            f"read again ({result.noise.source.value})",
            f"{noise.cosine_mean:.5f}",
            f"{noise.kl_mean:.5f}",
            f"{noise.top1_agreement:.3f}",
            _decided(noise),
            "noise floor",
        ]
    ]
    rows += [_row(trial, best, noise) for trial in result.trials]
    output.table(["", "cosine", "mean KL", "top-1", "decisions", ""], rows, right=(1, 2, 3, 4))
    if result.passed:
        seam = f"with {counted(best.repair_tokens, 'token')} at the seam computed" if best.repair_tokens else "as it is"
        leads = "" if result.n_leads == DEFAULT_N_LEADS else f", compiled behind {result.n_leads} lead only"
        output.text(f"{name} may be spliced {seam}{leads}.")
    else:
        then = "it is read instead of spliced from now on (--splice-anyway overrules)" if kept else "read it instead"
        output.text(f"{name} fails: {'; '.join(best.failures)}. For this model {then}.")


def _decided(fidelity: Fidelity, noise: Fidelity | None = None) -> str:
    """Decisions that are the same; those that changed within noise are told apart."""
    from kvnotes_local.evaluation.gate import flips_within_noise

    if not fidelity.decisions:
        return "–"
    same = sum(one.same for one in fidelity.decisions)
    unclear = 0 if noise is None else len(flips_within_noise(fidelity, noise))
    return f"{same}/{len(fidelity.decisions)}" + (f", {unclear} within noise" if unclear else "")


def _row(trial: Trial, best: Trial, noise: Fidelity) -> list[str]:
    one = trial.fidelity
    said = ("passes" if trial.passed else "fails") + (", chosen" if trial is best and trial.passed else "")
    return [
        f"splice, seam of {trial.repair_tokens}",
        f"{one.cosine_mean:.5f}",
        f"{one.kl_mean:.5f}",
        f"{one.top1_agreement:.3f}",
        _decided(one, noise),
        said,
    ]


def _entry(name: str, result: GateResult) -> dict[str, object]:
    noise, best = result.noise.fidelity, result.best
    return {
        "skill": name,
        "n_tokens": sum(skill.n_tokens for skill in result.skills),
        **_numbers(best),
        "noise_kl_mean": round(noise.kl_mean, 6),
        "noise_top1_agreement": round(noise.top1_agreement, 4),
        "noise_source": result.noise.source,
        "repair_tokens": best.repair_tokens,
        "n_leads": result.n_leads,
        "verdict": "passed" if result.passed else "failed",
        "failures": best.failures,
        "tried": [{"repair_tokens": trial.repair_tokens, **_numbers(trial)} for trial in result.trials],
    }


def _numbers(trial: Trial) -> dict[str, object]:
    one = trial.fidelity
    return {
        "cosine_mean": round(one.cosine_mean, 6),
        "kl_mean": round(one.kl_mean, 6),
        "top1_agreement": round(one.top1_agreement, 4),
        "n_positions": one.n_positions,
        "decisions": len(one.decisions),
        "decisions_same": sum(decision.same for decision in one.decisions),
    }
