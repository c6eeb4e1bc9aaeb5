"""What a user should do about rows of a report where a splice or an edit loses, from the results."""

from __future__ import annotations

from collections.abc import Sequence

from kvnotes_local.evaluation.bench_row import BenchRow
from kvnotes_local.evaluation.gate import KL_FACTOR, KL_FLOOR, TOP1_SLACK
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.wording import counted
from studies.edit_levels import EditStudy
from studies.scenarios import ScenarioRow
from studies.skill_study import ARTIFACT_WAY, Study, WayRow

WORTH_IT = 1.2
"""A splice that is less than this many times as fast as reading is not worth an artifact."""
FEW = 8
"""Edits that flip a decision: fewer say too little about a level."""
DRIFT = 0.005
"""Fall of the mean cosine from the first half of a chat to the second that is worth a word."""


def lead_advice(study: Study) -> str:
    """Of a Study of one skill: which seam is enough."""
    ours = [row for row in study.rows if row.way.startswith(ARTIFACT_WAY)]
    passed = [row for row in ours if _holds(row, study.noise)]
    plain, best = ours[0], min(ours, key=lambda row: row.kl.mean)
    if not passed:
        return (
            "No seam holds the gate here, so `verify` has this skill read instead of spliced on this model with this KV type. "
            "If the KV type is a quantized one, try F16."
        )
    if passed[0] is plain:
        said = "Splice it as it is: without a seam it holds the gate."
    else:
        said = f"Let `verify` choose: without a seam it misses the gate, with a {_seam(passed[0])} it holds."
    if best is not passed[0]:
        said += (
            f" Where the last bit counts, set `kvnotes.repair` (with a {_seam(best)} KL is {best.kl.mean:.4f} instead of "
            f"{passed[0].kl.mean:.4f})."
        )
    return said


def together_advice(studies: Sequence[Study]) -> str:
    """Of Studies of several skills: how many are safe together."""
    worse = []
    for number, study in enumerate(studies, 1):
        noise = study.noise
        if not any(_holds(row, noise) and row.same >= noise.same for row in study.rows):
            worse.append(str(number))
    if not worse:
        return (
            "None of these numbers of skills loses more than the gate allows or a decision more than the noise floor."
        )
    return (
        f"With {' or '.join(worse)} of these skills no seam keeps both the gate and the decisions of the noise floor. Run "
        "`verify --together` with your own, and let the most important one be read (`kvnotes ask --read-skills`) if it fails."
    )


def length_advice(rows: Sequence[BenchRow]) -> str:
    """Of BenchRows: from which length on splicing pays."""
    slow = [row.n_skill_tokens for row in rows if row.speedup < WORTH_IT]
    if not slow:
        return f"Splicing pays at every length from {rows[0].n_skill_tokens:,} tokens on."
    return f"At {', '.join(f'{n:,}' for n in slow)} tokens reading is about as fast: leave texts that short as text."


def edits_advice(found: EditStudy) -> str:
    """Of levels of an edit: which to use, which not to rely on."""
    summary = found.summary
    if not summary:
        return "The value decides nothing on this model, so no level can be judged; use `full` where it matters."
    if summary[0].n < FEW:
        return f"Only {summary[0].n} flip here, too few to choose a level by; use `full` where it matters."
    misses = {row.level: row.n - round(row.agreement * row.n) for row in summary}
    sure = [row for row in summary if not misses[row.level] and row.level is not EditLevel.FULL]
    lost = ", ".join(f"`{level}` ({n})" for level, n in misses.items() if n)
    said = (
        f"Decisions that differ from reading afresh: {lost}." if lost else "Every level decides as reading afresh does."
    )
    if sure:
        cheapest = min(sure, key=lambda row: row.share_decoded)
        return f"{said} Use `{cheapest.level}`: no decision lost, {cheapest.share_decoded:.1%} of the tokens."
    others = [row for row in summary if row.level is not EditLevel.FULL]
    best = min(others, key=lambda row: (misses[row.level], row.share_decoded))
    kept = best.n - misses[best.level]
    return (
        f"{said} `{best.level}` comes nearest, with {kept} of {counted(best.n, 'decision')} for "
        f"{best.share_decoded:.1%} of the tokens; where a decision matters, use `full`."
    )


def scenario_advice(rows: Sequence[ScenarioRow]) -> str:
    """Of ScenarioRows: decisions that differ, and drift."""
    n, same = sum(row.n for row in rows), sum(row.same for row in rows)
    right, recompute_right = sum(row.right for row in rows), sum(row.recompute_right for row in rows)
    if same == n:
        said = "All decisions are those of recompute."
    else:
        said = f"{n - same} of {counted(n, 'decision')} are not recompute's, "
        if right >= recompute_right:
            said += (
                f"but no fewer are right ({right} here, {recompute_right} there). Use `full` only to have recompute's."
            )
        else:
            said += (
                f"and fewer are right ({right} here, {recompute_right} there): where a decision matters, set the field with "
                "`--level auto` or `full`."
            )
    drifting = [row.name for row in rows if row.n >= 8 and row.first_half - row.second_half > DRIFT]
    if drifting:
        said += f" Answers move away as edits add up ({'; '.join(drifting)}): set a field with `full` once in a while."
    return said


def _seam(row: WayRow) -> str:
    return row.way.removeprefix(ARTIFACT_WAY)


def _holds(row: WayRow, noise: WayRow) -> bool:
    """The gate's rule, but for decisions, whose margins a row does not have."""
    limit = max(KL_FACTOR * noise.kl.mean, KL_FLOOR)
    return row.kl.mean <= limit and row.top1.mean >= noise.top1.mean - TOP1_SLACK
