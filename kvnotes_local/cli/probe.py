"""``kvnotes probe``: which rows of a context carry the decision that a field leads to."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvnotes_local.cli.options import DataDirOption, with_options
from kvnotes_local.cli.output import Output
from kvnotes_local.cli.svg import check_picture, write_svg
from kvnotes_local.errors import Cancelled, KvnotesError, UsageError
from kvnotes_local.session.engine_options import EngineOptions
from kvnotes_local.terminal_text import safe_line
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from kvnotes_local.contract.protocol import Engine
    from kvnotes_local.evaluation.probe import Probe, ProbeCase, ProbeSummary
    from kvnotes_local.evaluation.statistics import Estimate

LISTED = 12


def register(app: typer.Typer) -> None:
    app.command("probe")(with_options(probe))


def probe(
    cases: Annotated[int, typer.Option("--cases", min=1, help="How many of the bundled cases to probe.")] = 1,
    chat: Annotated[str | None, typer.Option("--chat", help="Probe this stored chat; needs the options below.")] = None,
    field: Annotated[str | None, typer.Option("--field", help="The field of the chat.")] = None,
    value: Annotated[str | None, typer.Option("--value", help="Another value for it.")] = None,
    ask: Annotated[str | None, typer.Option("--ask", help="The question that the field decides.")] = None,
    answers: Annotated[
        str | None, typer.Option("--answers", help="The two answers, separated by a comma. Default: Yes,No.")
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=32, help="Most questions to ask while searching.")] = 160,
    svg: Annotated[Path | None, typer.Option("--svg", help="Also draw the heat strip of the first case here.")] = None,
    data_dir: DataDirOption = None,
    *,
    options: EngineOptions,
    output: Output,
) -> None:
    """Swap rows between two readings of a text and see which ones carry the decision.

    While reading, models write conclusions into the rows of later tokens. This shows into which.
    """
    from kvnotes_local.cli.progress import step_progress
    from kvnotes_local.cli.session import open_session
    from kvnotes_local.evaluation.probe import probe as run_probe
    from kvnotes_local.evaluation.probe import summarize

    of_chat = None if chat is None else _question(field, value, ask, answers or "Yes,No")
    if chat is None and any(given is not None for given in (field, value, ask, answers)):
        raise UsageError("--field, --value, --ask and --answers are about a chat: give it with --chat.")
    if svg is not None:
        check_picture(svg)
    found: list[Probe] = []
    problems: list[str] = []
    with open_session(options, output) as session, step_progress(output, session.stop) as step:
        if chat is None or of_chat is None:
            wanted = _bundled(session.engine)
        else:
            wanted = (_case_of_chat(session.engine, data_dir, chat, of_chat),)
        for case in wanted:
            if len(found) == cases:
                break
            try:
                found.append(
                    run_probe(
                        session.engine,
                        case,
                        max_trials=trials,
                        step=lambda what, name=case.name: step(f"{name}: {what}"),  # type: ignore[misc]
                    )
                )
            except (UsageError, Cancelled):
                raise
            except KvnotesError as error:
                if session.stop.is_set() or chat is not None or (case is wanted[-1] and not found):
                    raise
                problems.append(str(error))
                output.note(str(error))
        info = session.engine.info
    for one in found:
        _show(output, one)
    summary = summarize(found)
    if len(found) > 1:
        _show_summary(output, summary, len(found))
    if svg is not None:
        from kvnotes_local.cli.svg import heat_strip

        title = f"{found[0].name}: recovery of the decision by each token, the field underlined ({info.name})"
        write_svg(svg, heat_strip(found[0].pieces, heat(found[0]), title))
        output.note(f"Picture: {svg}")
    output.document({"model": info.name, "cases": found, "summary": summary, "problems": problems})


def heat(found: Probe) -> list[float]:
    """How strongly to colour each token: its recovery, or that of its window; -1 for the field itself."""
    strength = [0.0] * found.n_tokens
    for window in found.windows:
        for position in range(window.start, window.stop):
            strength[position] = max(0.0, window.recovery) / (window.stop - window.start)
    for window in found.positions:
        strength[window.start] = max(0.0, window.recovery)
    top = max(strength) or 1.0
    strength = [value / top for value in strength]
    for position in range(*found.field):
        strength[position] = -1.0
    return strength


def _bundled(engine: Engine) -> tuple[ProbeCase, ...]:
    from kvnotes_local.evaluation.decision_cases import decision_texts
    from kvnotes_local.evaluation.probe import decision_probe_cases

    return decision_probe_cases(engine, decision_texts())


@dataclass(frozen=True)
class _Question:
    """What is asked of a chat: another value for a field, a question, and two answers to it."""

    field: str
    value: str
    ask: str
    answers: tuple[str, str]


def _question(field: str | None, value: str | None, ask: str | None, answers: str) -> _Question:
    if not (field and value and ask):
        raise UsageError("--chat needs --field, --value and --ask.")
    both = [answer.strip() for answer in answers.split(",")]
    if len(both) != 2 or not all(both) or both[0] == both[1]:
        raise UsageError(f"--answers {answers!r} is not two answers, separated by a comma.")
    return _Question(field, value, ask, (both[0], both[1]))


def _case_of_chat(engine: Engine, data_dir: Path | None, chat: str, of_chat: _Question) -> ProbeCase:
    from kvnotes_local.evaluation.probe import chat_probe_case
    from kvnotes_local.notebook.stored_chat import check_model
    from kvnotes_local.session.places import Places

    stored = Places.usual(data=data_dir).chat_store().load(chat)
    check_model(stored.summary, engine.info)
    return chat_probe_case(chat, stored.segments, of_chat.field, of_chat.value, of_chat.ask, of_chat.answers)


def _show(output: Output, found: Probe) -> None:
    output.text(
        f"\n{found.name}: {counted(found.n_tokens, 'token')}, decision {found.margins[0]:+.2f} → {found.margins[1]:+.2f} nats "
        f"(field {found.field_name!r})"
    )
    rows = [
        ["the field's own rows", f"{found.own:+.2f}"],
        ["all rows behind it", f"{found.later:+.2f}"],
        *(
            [f"those, layers {round(one.first * 100)}–{round(one.stop * 100)} % only", f"{one.recovery:+.2f}"]
            for one in found.layers
        ),
        [f"the {len(found.positions[:8])} strongest rows", f"{found.top:+.2f}"],
        ["as many random ones", f"{found.random:+.2f}"],
    ]
    output.table(["swapped", "recovery"], rows, right=(1,))
    if not output.json:
        output.text()
        _strip(output, found)
        output.text()
    strongest = [
        [f"{one.start:,}", f"{one.recovery:+.2f}", repr(found.pieces[one.start]), _around(found, one.start)]
        for one in found.positions[:LISTED]
    ]
    output.table(["position", "recovery", "token", "in"], strongest, right=(0, 1))


def _strip(output: Output, found: Probe) -> None:
    """Tokens coloured by what they carry on a terminal with colours, else a line of bars a token."""
    values = heat(found)
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        text = Text()
        for piece, value in zip(found.pieces, values, strict=True):
            style = "underline" if value < 0 else f"on rgb({40 + round(200 * value)},40,40)" if value > 0.02 else ""
            text.append(safe_line(piece.replace("\n", "⏎")) + ("\n" if "\n" in piece else ""), style)
        Console().print(text)
        return
    bars = "".join("‾" if value < 0 else " ▁▂▃▄▅▆▇█"[round(8 * value)] for value in values)
    for at in range(0, len(bars), 100):
        output.text(f"{at:>6} |{bars[at : at + 100]}|")


def _around(found: Probe, position: int) -> str:
    return "…" + "".join(found.pieces[max(0, position - 6) : position + 1]).replace("\n", "⏎") + "…"


def _show_summary(output: Output, summary: ProbeSummary, n: int) -> None:
    def said(one: Estimate) -> list[str]:
        return [f"{one.mean:+.2f}", f"{one.low:+.2f} … {one.high:+.2f}"]

    output.text(f"\nOver {counted(n, 'case')}:")
    rows = [
        ["the field's own rows", *said(summary.own)],
        ["all rows behind it", *said(summary.later)],
        ["the strongest rows", *said(summary.top)],
        ["as many random ones", *said(summary.random)],
    ]
    output.table(["swapped", "recovery", "95 % interval"], rows, right=(1, 2))
