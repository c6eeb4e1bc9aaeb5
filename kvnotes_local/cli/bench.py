"""``kvnotes bench``: time to the first token, by how a skill came into the chat."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvnotes_local.cli.options import RepairOption, with_options
from kvnotes_local.cli.output import Output
from kvnotes_local.cli.svg import check_picture, write_svg
from kvnotes_local.session.engine_options import EngineOptions
from kvnotes_local.session.quantities import human_ms

if TYPE_CHECKING:
    from kvnotes_local.evaluation.bench_row import BenchRow


STAGES = {
    "lookup_ms": "find",
    "open_ms": "open",
    "seam_ms": "seam",
    "reposition_ms": "turn",
    "restore_ms": "restore",
    "question_ms": "question",
    "rest_ms": "rest",
}
"""Fields of ``SpliceStages`` and their headings."""


def register(app: typer.Typer) -> None:
    app.command("bench")(with_options(bench))


def bench(
    length: Annotated[
        list[int] | None,
        typer.Option("--length", min=64, help="Skill length in tokens; repeatable. Default: 256 … what fits."),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Runs of each way; medians are shown.")] = 5,
    edits: Annotated[bool, typer.Option("--edits/--no-edits", help="Also time edits of a field.")] = True,
    svg: Annotated[Path | None, typer.Option("--svg", help="Also draw the times here.")] = None,
    repair: RepairOption = None,
    *,
    options: EngineOptions,
    output: Output,
) -> None:
    """Compare reading a skill, splicing it, and having it in place already, for one model on this machine."""
    from kvnotes_local.cli.progress import step_progress
    from kvnotes_local.cli.session import open_session
    from kvnotes_local.evaluation.bench import LENGTHS, longest_length, run_bench

    if svg is not None:
        check_picture(svg)
    with open_session(options, output) as session, step_progress(output, session.stop) as step:
        info = session.engine.info
        if left_out := [f"{one:,}" for one in sorted(set(length or ())) if one > longest_length(info.n_ctx)]:
            output.note(
                f"Left out: {', '.join(left_out)} tokens. Lengths have to fit twice into the context of {info.n_ctx:,}; "
                "use a larger --n-ctx."
            )
        rows = run_bench(
            session.engine, lengths=length or LENGTHS, repeat=repeat, repair=repair, edits=edits, step=step
        )
    output.text(f"Model: {info.setting}; times to the first token, medians of {repeat}\n")
    _show(output, rows, edits=edits)
    if svg is not None:
        from kvnotes_local.cli.svg import Axis, line_plot

        title = f"{info.name}, KV {info.type_k.name}: time to the first token"
        write_svg(svg, line_plot(series(rows), Axis("tokens of the skill"), Axis("milliseconds"), title))
        output.note(f"Picture: {svg}")
    output.document({"model": info.name, "kv_type": options.kv_type, "build": info.llama_cpp_version, "rows": rows})


def series(rows: list[BenchRow]) -> dict[str, list[tuple[float, float]]]:
    """Lines of the plot."""
    lines = {
        "everything read": [(row.n_skill_tokens, row.whole_ms) for row in rows],
        "skill read": [(row.n_skill_tokens, row.recompute_ms) for row in rows],
        "spliced, from disk": [(row.n_skill_tokens, row.cold_first_token_ms or 0.0) for row in rows],
        "spliced": [(row.n_skill_tokens, row.first_token_ms) for row in rows],
        "in place (limit)": [(row.n_skill_tokens, row.prefix_hit_ms) for row in rows],
    }
    return {name: [(float(x), y) for x, y in line] for name, line in lines.items() if any(y > 0 for _, y in line)}


def _show(output: Output, rows: list[BenchRow], *, edits: bool) -> None:
    output.table(
        [
            "tokens",
            "all read",
            "skill read",
            "spliced, cold",
            "spliced",
            "in place",
            "÷ in place",
            "speedup",
            "switch",
            "fork",
        ],
        [
            [
                f"{row.n_skill_tokens:,}",
                human_ms(row.whole_ms),
                human_ms(row.recompute_ms),
                "–" if row.cold_first_token_ms is None else human_ms(row.cold_first_token_ms),
                human_ms(row.first_token_ms),
                human_ms(row.prefix_hit_ms),
                f"{row.over_prefix_hit:.2f}",
                f"{row.speedup:.1f}×",
                human_ms(row.switch_ms),
                f"{row.fork_ms:.2f} ms",
            ]
            for row in rows
        ],
        right=range(10),
    )
    output.text("\nWhere the time of a splice and its question goes, in ms:")
    output.table(
        ["tokens", *STAGES.values(), "sum"],
        [
            [
                f"{row.n_skill_tokens:,}",
                *(f"{getattr(row.stages, name):.1f}" for name in STAGES),
                f"{row.stages.total_ms:.0f}",
            ]
            for row in rows
        ],
        right=range(len(STAGES) + 2),
    )
    if edits and rows:
        output.text("\nA field changed, then the question:")
        levels = list(rows[0].edit_ms)
        output.table(
            ["tokens", *levels],
            [[f"{row.n_skill_tokens:,}", *(human_ms(row.edit_ms[level]) for level in levels)] for row in rows],
            right=range(len(levels) + 1),
        )
    worst = max(row.proof_error for row in rows)
    output.text(f"\nThe times that answers claim differ from the wall clock by {100 * worst:.1f} % at most.")
    slower = list(dict.fromkeys(f"{row.n_skill_tokens:,}" for row in rows if row.speedup < 1))
    if slower:
        output.text(f"Splicing is slower than reading at {', '.join(slower)} tokens: read skills that short.")
