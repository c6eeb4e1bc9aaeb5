"""Results of the studies as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from kvnotes_local.evaluation.bench_row import BenchRow
from kvnotes_local.evaluation.probe import Probe, ProbeSummary
from kvnotes_local.evaluation.statistics import Estimate
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.wording import counted
from studies.edit_levels import EditOutcome, EditStudy
from studies.scenarios import ScenarioRow
from studies.skill_study import Study, WayRow


@dataclass(frozen=True)
class NotesStudy:
    """Probes of several cases. ``problems``: why others were left out."""

    cases: tuple[Probe, ...]
    summary: ProbeSummary
    problems: tuple[str, ...]


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = ["| " + " | ".join(headers) + " |", "|---" + "|---:" * (len(headers) - 1) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def interval(value: Estimate, digits: int = 4) -> str:
    """An Estimate: mean with its 95 % interval."""
    return f"{value.mean:.{digits}f} ({value.low:.{digits}f} … {value.high:.{digits}f})"


def study_table(study: Study) -> str:
    """A Study of one skill. Differences whose interval holds zero are called noise."""
    rows = [_way(study.noise), *map(_way, study.rows)]
    n = study.noise.kl.n
    return (
        f"{study.skill}, {counted(study.n_tokens, 'token')}; {counted(n, 'position')}; noise floor: {study.source}. "
        "KL in nats; intervals are 95 % bootstrap over answers; the last column is the paired difference of the mean KL "
        "from the artifact as it is (seam of 0).\n\n"
        + markdown_table(["", "cosine", "mean KL", "top-1", "decisions", "KL against seam of 0"], rows)
    )


def together_table(studies: Sequence[Study]) -> str:
    """Studies of several skills."""
    rows = []
    for study in studies:
        rows.append([f"noise floor ({study.source})", *_way(study.noise)[1:5], f"{study.n_tokens:,}"])
        rows += [[*_way(row)[:5], f"{study.n_tokens:,}"] for row in study.rows]
    return markdown_table(["", "cosine", "mean KL", "top-1", "decisions", "tokens"], rows)


def length_table(rows: Sequence[BenchRow]) -> str:
    """BenchRows: milliseconds to the first token."""
    cells = []
    for row in rows:
        cold = row.cold_first_token_ms
        cells.append(
            [
                f"{row.n_skill_tokens:,}",
                f"{row.whole_ms:,.0f}",
                f"{row.recompute_ms:,.0f}",
                "–" if cold is None else f"{cold:,.0f}",
                f"{row.first_token_ms:,.0f}",
                f"{row.prefix_hit_ms:,.0f}",
                f"{row.speedup:.1f}×",
                f"{row.switch_ms:,.0f}",
                f"{row.fork_ms:.2f}",
            ]
        )
    headers = [
        "tokens",
        "all read",
        "skill read",
        "spliced from disk",
        "spliced",
        "in place",
        "speedup",
        "switch",
        "fork",
    ]
    said = "Milliseconds to the first token, medians; *speedup*: skill read against spliced, the chat before it being in place."
    return f"{said}\n\n" + markdown_table(headers, cells)


def edits_table(found: EditStudy) -> str:
    """LevelSummaries, and the margins of every EditOutcome."""
    outcomes, summary = found.outcomes, found.summary
    by_change: dict[str, dict[EditLevel, EditOutcome]] = {}
    for one in outcomes:
        by_change.setdefault(one.change, {})[one.level] = one
    levels = list(dict.fromkeys(one.level for one in outcomes))
    rows = []
    for change, by_level in by_change.items():
        any_one = by_level[levels[0]]
        before, after = any_one.margin_before, any_one.margin_after
        margins = [f"{by_level[level].margin:+.2f}" for level in levels]
        chosen = by_level[EditLevel.AUTO].chosen
        rows.append([change, "yes" if before > 0 > after else "no", f"{before:+.2f}", *margins, chosen])
    n = summary[0].n if summary else 0
    said = (
        f"{n} of {counted(len(by_change), 'edit')} flip the decision when the text is read afresh with the new value, "
        "rightly both times"
    )
    cells = [
        [
            row.level,
            f"{row.recovery:.2f} ({row.low:.2f} … {row.high:.2f})",
            f"{round(row.agreement * row.n)}/{row.n}",
            f"{row.share_decoded:.1%}",
        ]
        for row in summary
    ]
    over = (
        f"{said}; this table is over these. *Recovery*: share of the way from the old decision to that of reading afresh, median "
        "with 95 % bootstrap interval; above 1: further. *Tokens*: computed for edit and question, trials of auto included, as a "
        "share of the whole chat.\n\n" + markdown_table(["level", "recovery", "as recompute", "tokens"], cells)
        if cells
        else f"{said}: nothing to bring round."
    )
    headers = ["edit", "flips", "before", *levels, "auto chose"]
    return (
        f"{over}\n\nMargins of every edit: log-probability of the first answer minus that of the second.\n\n"
        + markdown_table(headers, rows)
    )


def scenario_table(rows: Sequence[ScenarioRow]) -> str:
    """ScenarioRows, and a last row over all of them, whose speedup is the median of theirs."""
    cells = [
        [
            row.name,
            f"{row.same}/{row.n}",
            f"{row.right}/{row.n}",
            f"{row.recompute_right}/{row.n}",
            f"{row.cosine:.4f}",
            f"{row.cosine_min:.4f}",
            f"{row.first_half:.4f} → {row.second_half:.4f}",
            f"{row.kl:.4f}",
            f"{row.speedup:.2f}×",
        ]
        for row in rows
    ]
    n = sum(row.n for row in rows)
    same, right = sum(row.same for row in rows), sum(row.right for row in rows)
    recompute_right = sum(row.recompute_right for row in rows)
    times = median(row.speedup for row in rows)
    cells.append(
        [
            "all",
            *(f"{total}/{n}" for total in (same, right, recompute_right)),
            "",
            "",
            "",
            "",
            f"{times:.2f}×",
        ]
    )
    headers = ["", "as recompute", "right", "recompute right", "cosine", "lowest", "halves", "KL", "speedup"]
    return markdown_table(headers, cells)


def probe_table(found: NotesStudy) -> str:
    """Recoveries of several probes, and their means with intervals."""
    cells = [
        [
            one.name,
            f"{one.margins[0]:+.2f} → {one.margins[1]:+.2f}",
            *(f"{recovery:+.2f}" for recovery in (one.own, one.later, one.top, one.random)),
            ", ".join(repr(one.pieces[window.start]) for window in one.positions[:3]),
        ]
        for one in found.cases
    ]
    summary = found.summary
    means = [
        f"{one.mean:+.2f} ({one.low:+.2f} … {one.high:+.2f})"
        for one in (summary.own, summary.later, summary.top, summary.random)
    ]
    cells.append([f"mean of {len(found.cases)}", "", *means, ""])
    headers = ["", "decision", "field's own rows", "rows behind it", "8 strongest", "8 random", "strongest"]
    said = (
        "Share of the decision's flip that these rows of the other reading bring; 95 % bootstrap intervals over cases."
    )
    skipped = (
        f"\n\nLeft out, since the value hardly moves the decision: {len(found.problems)}." if found.problems else ""
    )
    return f"{said}\n\n{markdown_table(headers, cells)}{skipped}"


def _way(row: WayRow) -> list[str]:
    versus = row.versus
    if versus is None:
        said = "–"
    else:
        said = f"{versus.mean:+.4f} ({versus.low:+.4f} … {versus.high:+.4f})" + ("" if versus.differs else ", noise")
    decided = f"{row.same}/{row.decisions}" if row.decisions else "–"
    return [row.way, f"{row.cosine:.5f}", interval(row.kl), f"{row.top1.mean:.3f}", decided, said]
