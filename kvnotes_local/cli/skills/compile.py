"""``kvnotes skills compile``: read skills once, for one model or several, and keep what the model made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from kvnotes_local.cli.options import (
    CacheDirOption,
    ContextOption,
    FastBuffersOption,
    GpuLayersOption,
    IsolateOption,
    SkillsDirOption,
    ThreadsOption,
)
from kvnotes_local.cli.output import Output
from kvnotes_local.cli.skills.batch_report import ProgressStyle
from kvnotes_local.contract.store_type import StoreType
from kvnotes_local.errors import KvnotesError, UsageError
from kvnotes_local.session.engine_options import EngineOptions, KvType
from kvnotes_local.spelling import composed
from kvnotes_local.stop_signals import exit_code
from kvnotes_local.wording import counted

GATE_FAILED = 3


def compile_skills(
    names: Annotated[list[str] | None, typer.Argument(help="Skills to compile.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every skill that was found.")] = False,
    references: Annotated[
        list[str] | None,
        typer.Option("--with", help="Compile this file of the skills, too, as references/x.md; repeatable."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also those that are up to date.")] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Measure splicing of what was made against reading it, and keep the verdicts."),
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be made.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and compile again what changes.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Refused unless 1; the message says why.")] = 1,
    store: Annotated[
        StoreType, typer.Option("--store", help="Element type on disk; q8_0 takes half the space.")
    ] = StoreType.F16,
    progress: Annotated[
        ProgressStyle, typer.Option("--progress", help="How to tell what goes on; json: one object a line on stderr.")
    ] = ProgressStyle.AUTO,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="GGUF file, or the name of a model; repeatable.")
    ] = None,
    n_ctx: ContextOption = 0,
    n_gpu_layers: GpuLayersOption = -1,
    threads: ThreadsOption = 0,
    isolate: IsolateOption = False,
    fast_buffers: FastBuffersOption = True,
    skills_dir: SkillsDirOption = None,
    cache_dir: CacheDirOption = None,
    *,
    output: Output,
) -> None:
    """Read skills once and keep what the model made of them; what is up to date is left alone."""
    from kvnotes_local.cli.skills.batch_report import batch_report
    from kvnotes_local.cli.skills.batch_run import BatchRun
    from kvnotes_local.cli.skills.batch_wanted import Wanted

    if not names and not everything:
        raise UsageError("Name the skills to compile, or use --all.")
    if watch and (plan or output.json):
        raise UsageError("--watch does not end by itself, so it goes neither with --plan nor with --json.")
    wanted = Wanted(
        tuple(dict.fromkeys(map(composed, names or ()))), everything, tuple(references or ()), tuple(skills_dir or ())
    )
    options = EngineOptions(None, KvType.F16, n_ctx, n_gpu_layers, threads, cache_dir, isolate, fast_buffers)
    models: tuple[str | None, ...] = tuple(dict.fromkeys(model or ())) or (None,)
    output = replace(output, events=progress is ProgressStyle.JSON)
    run = BatchRun(wanted, models, options, store, output, batch_report(progress, output), verify)
    try:
        if jobs > 1:
            raise KvnotesError(_no_jobs())
        try:
            run.go(force=force, only_plan=plan)
        finally:
            output.document(run.record.document())
        if watch:
            from kvnotes_local.cli.skills.watching import watch_skills

            watch_skills(run, output)
        if run.record.failed:
            raise KvnotesError(
                f"{len(run.record.failed)} of {counted(run.record.n_all, 'artifact')} could not be made: "
                f"{', '.join(run.record.failed)}. See above for the reasons."
            )
    except UsageError:
        raise
    except KvnotesError as error:
        if output.events:
            output.event("error", {"message": str(error)})
            raise typer.Exit(exit_code()) from error
        raise KvnotesError(str(error)) from error  # also what was stopped says how to go on
    if run.record.gates_failed:
        output.note(
            f"The gate does not hold for {', '.join(run.record.gates_failed)}: they are read instead of spliced."
        )
        raise typer.Exit(GATE_FAILED)


def _no_jobs() -> str:
    from kvnotes_local.engine.llama.native import n_gpus

    reason = "--jobs is refused: one context already keeps the whole device busy, a second one would only share it."
    if n_gpus() > 1:
        reason += (
            " With several GPUs start one command for each, as CUDA_VISIBLE_DEVICES=1 kvnotes skills compile …; "
            "they may share the cache."
        )
    return reason
