"""``kvnotes verify``: is splicing as good as reading, for this model and these skills?"""

from __future__ import annotations

from typing import Annotated

import typer

from kvnotes_local.cli.options import DataDirOption, SkillsDirOption, with_options
from kvnotes_local.cli.output import Output
from kvnotes_local.errors import KvnotesError, UsageError
from kvnotes_local.session.engine_options import EngineOptions
from kvnotes_local.spelling import composed
from kvnotes_local.wording import counted

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
    from kvnotes_local.cli.session import open_session
    from kvnotes_local.cli.verify_run import VerifyRun, chat_contexts, result_entry
    from kvnotes_local.evaluation.verification import Effort

    joint = [name.strip() for name in (together or "").split(",") if name.strip()]
    if together is not None and (len(joint) < 2 or len(set(joint)) < len(joint) or names or everything):
        raise UsageError("--together wants two or more different skills, separated by commas, and no others beside it.")
    if everything and names:
        raise UsageError("--all measures every skill that was found, so it wants no names beside it.")
    with open_session(options, output, skills_dirs=skills_dir or []) as session:
        info = session.engine.info
        measured = (
            [skill.name for skill in session.library.skills]
            if everything
            else joint or list(dict.fromkeys(map(composed, names or [DEFAULT_SKILL])))
        )
        if not measured:
            raise KvnotesError(
                "No skill was found, so there is nothing to measure. `kvnotes skills new NAME` makes one."
            )
        if everything:
            for folder in session.library.problems:
                output.note(folder.message)
        else:
            for name in measured:
                session.library.get(name)  # a mistyped one is told before anything is measured
        effort = Effort(
            chat_contexts(session, data_dir, chat, measured), tuple(repair) if repair else None, positions, questions
        )
        output.text(f"Model: {info.setting}")
        verdicts = session.verdicts if chat is None else None
        run = VerifyRun(session, output, effort, verdicts)
        if joint:
            run.measure_together(joint)
        else:
            for name in measured:
                run.measure(name, alone=len(measured) == 1)
    output.document(
        {
            "model": info.name,
            "kv_type": options.kv_type,
            "build": info.llama_cpp_version,
            "results": [result_entry(name, result) for name, result in run.results],
            "problems": run.problems,
        }
    )
    if run.problems:
        failed = ", ".join(problem.skill for problem in run.problems)
        raise KvnotesError(
            f"{len(run.problems)} of {counted(len(measured), 'skill')} could not be measured: {failed}. "
            "See above for the reasons."
        )
    if not all(result.passed for _, result in run.results):
        raise typer.Exit(GATE_FAILED)
