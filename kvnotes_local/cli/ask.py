"""``kvnotes ask``: one turn without a screen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvnotes_local.cli.options import (
    CacheDirOption,
    ContextOption,
    EngineOptions,
    GpuLayersOption,
    JsonOption,
    KvType,
    KvTypeOption,
    ModelOption,
    QuietOption,
    RepairOption,
    SkillsDirOption,
    ThreadsOption,
)
from kvnotes_local.cli.output import Output, human_ms
from kvnotes_local.errors import UsageError


def register(app: typer.Typer) -> None:
    app.command("ask")(ask)


def ask(
    text: Annotated[str, typer.Argument(help="The question.")],
    skill: Annotated[
        list[str] | None, typer.Option("--skill", "-s", help="Splice this skill first; repeatable.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="System text; default: the model's own.")] = None,
    set_field: Annotated[
        list[str] | None, typer.Option("--set", help="FIELD=VALUE: value of a skill's field; repeatable.")
    ] = None,
    read_skills: Annotated[
        bool, typer.Option("--read-skills", help="Let the model read skills instead of splicing.")
    ] = False,
    repair: RepairOption = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens.")] = 512,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="0 always takes the likeliest token.")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="For temperatures above 0.")] = 0,
    model: ModelOption = None,
    kv_type: KvTypeOption = KvType.F16,
    n_ctx: ContextOption = 0,
    n_gpu_layers: GpuLayersOption = -1,
    threads: ThreadsOption = 0,
    skills_dir: SkillsDirOption = None,
    cache_dir: CacheDirOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Ask one question, with skills spliced in front of it."""
    output = Output(as_json, quiet)
    options = EngineOptions(model, kv_type, n_ctx, n_gpu_layers, threads, cache_dir)
    run_ask(
        output,
        options,
        text,
        skill or [],
        fields(set_field or []),
        system,
        read_skills,
        repair,
        max_tokens,
        temperature,
        seed,
        skills_dir or [],
    )


def run_ask(
    output: Output,
    options: EngineOptions,
    text: str,
    skills: list[str],
    values: dict[str, str],
    system: str | None,
    read_skills: bool,
    repair: int | None,
    max_tokens: int,
    temperature: float,
    seed: int,
    skills_dirs: list[Path],
) -> None:
    from kvnotes_local.cli.progress import compile_progress
    from kvnotes_local.cli.session import open_session
    from kvnotes_local.engine.protocol import Sampling
    from kvnotes_local.notebook.notebook import Notebook

    with open_session(options, output, skills_dirs=skills_dirs) as session:
        notebook = Notebook(
            session.engine,
            library=session.library,
            compiler=session.compiler,
            system=system,
            on_notice=output.note,
        )
        for name in skills:
            with compile_progress(output, f"Compiling {name}") as progress:
                notebook.splice(name, repair=repair, values=values, read=read_skills, progress=progress)
        reply = notebook.ask(
            text,
            sampling=Sampling(temperature=temperature, seed=seed),
            max_tokens=max_tokens,
            on_text=lambda piece: output.text(piece, end=""),
        )
        proof = reply.proof
        output.text()
        output.note(
            f"{proof.spliced:,} spliced · {proof.repaired:,} repaired · {proof.prefilled:,} prefilled · "
            f"first token after {human_ms(proof.change_ms + proof.ttft_ms)}"
        )
        output.document(
            {
                "reply": reply.text,
                "stop_reason": reply.stop_reason,
                "tokens": {
                    "prefilled": proof.prefilled,
                    "reused": proof.reused,
                    "spliced": proof.spliced,
                    "repaired": proof.repaired,
                    "generated": proof.generated,
                },
                "ttft_ms": round(proof.change_ms + proof.ttft_ms, 2),
                "chat_id": None,
                "model": session.engine.info.name,
                "class": session.engine.info.model_class,
                "segments": [
                    {"kind": s.kind, "name": s.name, "tokens": s.n_tokens, "freshness": s.freshness}
                    for s in notebook.segments
                ],
            }
        )


def fields(pairs: list[str]) -> dict[str, str]:
    """Values given as FIELD=VALUE. Raises UsageError."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set {pair!r} is not FIELD=VALUE.")
        values[name.strip()] = value.strip()
    return values
