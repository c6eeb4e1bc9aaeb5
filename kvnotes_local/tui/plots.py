"""Pictures in the terminal: bars with their numbers, readable without colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.content import Content

from kvnotes_local.session.quantities import human_ms
from kvnotes_local.terminal_text import safe_line

if TYPE_CHECKING:
    from kvnotes_local.evaluation.bench_row import BenchRow
    from kvnotes_local.evaluation.live_check import LiveCheck
    from kvnotes_local.evaluation.probe import Probe

_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(value: float, top: float, width: int) -> str:
    """A bar of at most ``width`` cells, exact to an eighth of one."""
    eighths = round(8 * width * min(1.0, max(0.0, value / top))) if top > 0 else 0
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def bench_plot(model: str, rows: Sequence[BenchRow], width: int) -> Content:
    """Time to the first token by length of the skill and by how it came into the chat."""
    top = max(max(row.recompute_ms, row.first_token_ms, row.cold_first_token_ms or 0.0) for row in rows)
    room = max(10, width - 66)
    lines = [Content.styled(f"Time to the first token: {safe_line(model)}", "bold"), Content("")]
    for row in rows:
        kinds = [("skill read", row.recompute_ms, "$text-error"), ("spliced", row.first_token_ms, "$text-primary")]
        if row.cold_first_token_ms is not None:
            kinds.insert(1, ("from disk", row.cold_first_token_ms, "$text-accent"))
        kinds.append(("in place", row.prefix_hit_ms, "$text-success"))
        for number, (kind, ms, style) in enumerate(kinds):
            label = f"{row.n_skill_tokens:>6,} tokens  " if number == 0 else " " * 15
            faster = f"  {row.speedup:.1f}× as fast as reading" if kind == "spliced" else ""
            lines.append(
                Content.assemble(f"{label}{kind:<11}", (bar(ms, top, room), style), f" {human_ms(ms)}{faster}")
            )
        lines.append(Content(""))
    lines.append(Content("Medians. In place: nothing had to be read, the lower limit of what splicing can reach."))
    return Content("\n").join(lines)


def probe_plot(model: str, found: Probe, width: int) -> Content:
    """Which rows behind a field carry the decision that it leads to."""
    room = max(10, width - 60)
    lines = [
        Content.styled(f"Where the notes are: {safe_line(found.name)} ({safe_line(model)})", "bold"),
        Content(""),
        Content(
            f"Field: {safe_line(found.field_name)}. Its own rows carry {found.own:.0%} of the decision, "
            f"all later ones {found.later:.0%}."
        ),
        Content(""),
        Content("Rows behind the field, swapped in groups; how much of the decision goes with them:"),
    ]
    for window in found.windows:
        text = "".join(found.pieces[window.start : window.stop])
        style = "$text-warning" if window.recovery >= 0.1 else "$text-muted"
        lines.append(
            Content.assemble(
                f"{window.start:>5}–{window.stop:<5} ",
                (f"{bar(window.recovery, 1.0, room):<{room}}", style),
                f" {window.recovery:>5.0%}  {safe_line(text, 36)}",
            )
        )
    if found.positions:
        lines += [Content(""), Content("Strongest single rows:")]
        for window in found.positions[:10]:
            text = "".join(found.pieces[window.start : window.stop])
            lines.append(Content(f"{window.start:>5}  {window.recovery:>5.0%}  {safe_line(repr(text), 36)}"))
    return Content("\n").join(lines)


def check_report(check: LiveCheck) -> Content:
    """The open chat against the same chat read afresh."""
    lines = [
        Content.styled("This chat against the same chat read afresh", "bold"),
        Content(""),
        Content(
            f"{check.n_changed:,} of {check.n_tokens:,} tokens are not as reading afresh would have made them. "
            f"Along the answers, {check.n_positions:,} positions: top-1 agreement {check.top1_agreement:.3f}, "
            f"mean KL {check.kl_mean:.4f} nats, cosine {check.cosine_mean:.5f}."
        ),
        Content(""),
    ]
    if not check.differences:
        lines.append(Content("Reading afresh would have preferred the same token everywhere."))
    for one in check.differences:
        lines.append(
            Content(
                f"segment {one.segment}, token {one.token}: … {safe_line(one.before)[-40:]} ▸ here {one.said!r}, "
                f"afresh {one.recompute!r} (by {one.lead:.2f} nats)"
            )
        )
    return Content("\n").join(lines)
