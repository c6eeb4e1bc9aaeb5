"""``kvnotes skills``: list, show and compile prompt documents."""

from __future__ import annotations

from typing import Annotated

import typer

from kvnotes_local.cli.options import (
    CacheDirOption,
    ContextOption,
    EngineOptions,
    FastBuffersOption,
    GpuLayersOption,
    IsolateOption,
    JsonOption,
    KvType,
    ModelOption,
    QuietOption,
    SkillsDirOption,
    ThreadsOption,
)
from kvnotes_local.cli.output import Output, human_bytes
from kvnotes_local.engine.store_type import StoreType
from kvnotes_local.errors import KvnotesError, UsageError


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Prompt documents and their compiled KV.", no_args_is_help=True)
    group.command("list")(list_skills)
    group.command("compile")(compile_skills)
    app.add_typer(group, name="skills")


def list_skills(
    skills_dir: SkillsDirOption = None,
    cache_dir: CacheDirOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """List the skills that were found and for which models they are compiled."""
    from kvnotes_local.cli.session import artifact_store
    from kvnotes_local.skills.library import SkillLibrary

    output = Output(as_json, quiet)
    library = SkillLibrary.default(skills_dir or [])
    stored = [one for one in artifact_store(EngineOptions(cache_dir=cache_dir)).list() if one.meta is not None]
    rows, entries = [], []
    for skill in library.skills:
        artifacts = [one for one in stored if one.meta is not None and one.meta.skill == skill.name]
        models = sorted({one.meta.model_name for one in artifacts if one.meta is not None})
        rows.append([skill.name, ", ".join(models) or "not compiled", skill.description])
        entries.append(
            {
                "name": skill.name,
                "description": skill.description,
                "folder": skill.folder,
                "warnings": skill.warnings,
                "artifacts": [
                    {
                        "model": one.meta.model_name,
                        "n_tokens": one.meta.n_tokens,
                        "bytes": one.n_bytes,
                        "path": one.path,
                    }
                    for one in artifacts
                    if one.meta is not None
                ],
            }
        )
    width = 100
    if rows:
        names = max(len(row[0]) for row in rows)
        compiled = max(len(row[1]) for row in rows)
        room = max(24, width - names - compiled - 4)
        output.table(
            ["skill", "compiled for", "description"],
            [[name, models, text if len(text) <= room else text[: room - 1] + "…"] for name, models, text in rows],
        )
    else:
        output.text("No skill was found. A skill is a folder with a SKILL.md; name folders with --skills-dir.")
    for problem in library.problems:
        output.note(f"{problem.path}: {problem.message}")
    for shadowed in library.shadowed:
        output.note(f"{shadowed.skill.folder} is not used: {shadowed.by.folder} has the same name and comes first.")
    output.document(
        {
            "skills": entries,
            "problems": [{"path": problem.path, "message": problem.message} for problem in library.problems],
        }
    )


def compile_skills(
    names: Annotated[list[str] | None, typer.Argument(help="Skills to compile.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every skill that was found.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also those that are up to date.")] = False,
    store: Annotated[
        StoreType, typer.Option("--store", help="Element type on disk; q8_0 takes half the space.")
    ] = StoreType.F16,
    model: ModelOption = None,
    n_ctx: ContextOption = 0,
    n_gpu_layers: GpuLayersOption = -1,
    threads: ThreadsOption = 0,
    isolate: IsolateOption = False,
    fast_buffers: FastBuffersOption = True,
    skills_dir: SkillsDirOption = None,
    cache_dir: CacheDirOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Read skills once and keep what the model made of them."""
    from kvnotes_local.cli.progress import compile_progress
    from kvnotes_local.cli.session import open_session

    output = Output(as_json, quiet)
    if not names and not everything:
        raise UsageError("Name the skills to compile, or use --all.")
    options = EngineOptions(model, KvType.F16, n_ctx, n_gpu_layers, threads, cache_dir, isolate, fast_buffers)
    entries, failures = [], []
    with open_session(options, output, skills_dirs=skills_dir or [], store_type=store) as session:
        wanted = [skill.name for skill in session.library.skills] if everything else list(dict.fromkeys(names or []))
        skills = [session.library.get(name) for name in wanted]
        for skill in skills:
            try:
                with compile_progress(output, f"Compiling {skill.name}") as progress:
                    made = session.compiler.compile(skill, force=force, progress=progress)
            except KvnotesError as error:
                failures.append((skill.name, str(error)))
                output.note(f"{skill.name}: {error}")
                entries.append(_entry(skill.name, session.engine.info.name, status="failed", problem=str(error)))
                continue
            speed = f", {made.prefill_tokens_per_second:,.0f} tokens/s" if made.prefill_tokens_per_second else ""
            output.text(
                f"{skill.name}: {made.status.value}, {made.n_tokens:,} tokens, {human_bytes(made.n_bytes)}"
                + (f", {made.seconds:.1f} s{speed}" if made.seconds else "")
            )
            entries.append(
                _entry(
                    skill.name,
                    session.engine.info.name,
                    status=made.status.value,
                    path=str(made.path),
                    n_tokens=made.n_tokens,
                    n_bytes=made.n_bytes,
                    seconds=round(made.seconds, 3),
                )
            )
    output.document({"artifacts": entries})
    if failures:
        raise KvnotesError(f"{len(failures)} of {len(entries)} skills could not be compiled: see above.")


def _entry(
    skill: str,
    model: str,
    *,
    status: str,
    path: str | None = None,
    n_tokens: int = 0,
    n_bytes: int = 0,
    seconds: float = 0.0,
    problem: str | None = None,
) -> dict[str, object]:
    return {
        "skill": skill,
        "model": model,
        "path": path,
        "n_tokens": n_tokens,
        "bytes": n_bytes,
        "seconds": seconds,
        "status": status,
        "problem": problem,
    }
