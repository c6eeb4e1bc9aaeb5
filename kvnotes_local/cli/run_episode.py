"""``kvnotes run``: play a scripted chat."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvnotes_local.cli.options import SkillsDirOption, with_options
from kvnotes_local.cli.output import Output
from kvnotes_local.session.engine_options import EngineOptions
from kvnotes_local.session.quantities import human_ms
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from kvnotes_local.evaluation.episode import StepReport


def register(app: typer.Typer) -> None:
    app.command("run")(with_options(run_episode))


def run_episode(
    file: Annotated[Path, typer.Argument(help="EPISODE.toml: an optional system text and [[step]] tables.")],
    compare: Annotated[
        bool, typer.Option("--compare", help="Read the chat afresh at each question and compare.")
    ] = False,
    skills_dir: SkillsDirOption = None,
    *,
    options: EngineOptions,
    output: Output,
) -> None:
    """Play a scripted chat of splices, edits and questions, and report each step."""
    from kvnotes_local.cli.session import open_session
    from kvnotes_local.evaluation.episode import play
    from kvnotes_local.evaluation.episode_file import load_episode
    from kvnotes_local.notebook.notebook import Notebook

    episode = load_episode(file)
    with open_session(options, output, skills_dirs=skills_dir or []) as session:
        notebook = Notebook(
            session.engine,
            library=session.library,
            compiler=session.compiler,
            system=episode.system,
            on_notice=output.note,
        )
        reports = play(episode, notebook, compare=compare, told=lambda report: _tell(output, report))
    compared = [report.compared for report in reports if report.compared is not None]
    if compared:
        agree = sum(one.decision == one.recompute_decision if one.decision else one.top1_agrees for one in compared)
        output.text(f"\nAs when the chat is read afresh: {agree} of {counted(len(compared), 'decision')}.")
    output.document({"steps": [_entry(report) for report in reports]})


def _tell(output: Output, report: StepReport) -> None:
    argument = str(report.step.argument)
    output.text(
        f"{report.step.number:>3}  {report.step.action:<6}  {argument if len(argument) < 60 else argument[:59] + '…'}"
    )
    if report.note:
        output.text(f"             {report.note}")
    if report.reply is not None and report.proof is not None:
        proof = report.proof
        output.text(f"             → {' '.join(report.reply.split())}")
        output.text(
            f"             {proof.prefilled:,} prefilled · {proof.moved:,} moved · {proof.spliced:,} spliced · "
            f"first token after {human_ms(proof.change_ms + proof.ttft_ms)}"
        )
    if report.compared is not None:
        one = report.compared
        decision = f", decision {one.decision} / {one.recompute_decision}" if one.decision else ""
        output.text(
            f"             read afresh: {human_ms(one.recompute_ms)}, cosine {one.cosine:.4f}, KL {one.kl:.4f}{decision}"
        )


def _entry(report: StepReport) -> dict[str, object]:
    return {
        "step": report.step.number,
        "action": report.step.action,
        "note": report.note,
        "reply": report.reply,
        "proof": asdict(report.proof) if report.proof else None,
        "compared": asdict(report.compared) if report.compared else None,
    }
