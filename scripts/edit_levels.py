#!/usr/bin/env python3
"""How much of a decision does each level of an edit bring round? A Markdown report for one model.

.venv/bin/python scripts/edit_levels.py --model FILE --output docs/reports/edit-levels-NAME.md

Each case has a text of about 1,000 tokens with a field, a rule that leads from the field's value to an answer, and a question
at the end. The value is changed after the text has been read, once at each level; reading the text afresh with the new value is
what the levels are compared with. Only cases count in which reading afresh decides rightly both before and after.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.engine.engine_params import EngineParams
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.errors import KvnotesError
from kvnotes_local.evaluation.decision_cases import decision_texts
from kvnotes_local.evaluation.edit_levels import EditOutcome, measure_edits, summarize
from kvnotes_local.evaluation.machine import machine_name
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.paths import Paths


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, metavar="FILE")
    parser.add_argument("--kv-type", type=str.upper, default="F16", choices=[one.name for one in GGMLType])
    parser.add_argument("--domain", action="append", help="only this domain of the bundled cases; repeatable")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="texts of about 250 tokens")
    parser.add_argument("--output", type=Path, help="default: standard output")
    args = parser.parse_args()
    type = GGMLType[args.kv_type]
    texts = [one for one in decision_texts(long=not args.short) if args.domain is None or one.name in args.domain]
    if not texts:
        parser.error(f"there is no such domain; the domains are {', '.join(one.name for one in decision_texts())}")
    params = EngineParams(n_ctx=4096, type_k=type, type_v=type, n_threads=args.threads)
    outcomes: list[EditOutcome] = []
    with LlamaEngine(args.model, params, cache_dir=Paths.default().cache) as engine:
        for text in texts:
            outcomes += measure_edits(
                engine, text, lambda field: print(f"{time.strftime('%H:%M:%S')} {field}", file=sys.stderr)
            )
    shown = " ".join(["scripts/edit_levels.py", "--model", args.model.name, "--kv-type", args.kv_type.lower()])
    shown += "".join(f" --domain {name}" for name in args.domain or []) + (" --short" if args.short else "")
    text = report(outcomes, f"{args.model.stem}, {args.kv_type} cache", shown)
    if args.output is None:
        print(text, end="")
    else:
        write_atomically(args.output, text)
    return 0


def report(outcomes: list[EditOutcome], title: str, command: str) -> str:
    """The report as Markdown."""
    fields = list(dict.fromkeys(one.field for one in outcomes))
    rows = summarize(outcomes)
    lines = [
        f"# Levels of an edit: {title}",
        "",
        f"`{command}`, {time.strftime('%Y-%m-%d')}, {machine_name()}",
        "",
        f"{rows[0].n if rows else 0} of {len(fields)} decisions flip when the text is read afresh with the new value; the table "
        "is over these. *Recovery*: share of the way from the old decision to the one of reading afresh (median, 95 % bootstrap "
        "interval; above 1: further). *Agrees*: the same decision as reading afresh. *Tokens*: computed for edit and question, "
        "trials of `auto` included, as a share of the whole chat.",
        "",
        "| level | recovery | interval | agrees | tokens |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.level} | {row.recovery:.2f} | {row.low:.2f} … {row.high:.2f} | {round(row.agreement * row.n)} of {row.n} | "
            f"{row.share_decoded:.1%} |"
        )
    lines += [
        "",
        "Margins of each case: log-probability of the first answer minus that of the second, before the edit and after it.",
        "",
        "| field | flips | before | " + " | ".join(level.value for level in _LEVELS) + " | auto chose |",
        "|---|---|---|" + "---|" * len(_LEVELS) + "---|",
    ]
    for field in fields:
        by_level = {one.level: one for one in outcomes if one.field == field}
        any_one = by_level[EditLevel.FULL]
        cells = [f"{by_level[level].margin:+.2f}" for level in _LEVELS]
        lines.append(
            f"| {field} | {'yes' if any_one.flips else 'no'} | {any_one.margin_before:+.2f} | {' | '.join(cells)} | "
            f"{by_level[EditLevel.AUTO].chosen} |"
        )
    return "\n".join(lines) + "\n"


_LEVELS = (
    EditLevel.FULL,
    EditLevel.FIELD,
    EditLevel.ERRATUM,
    EditLevel.FIELD_ERRATUM,
    EditLevel.WINDOW,
    EditLevel.AUTO,
)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KvnotesError as error:
        sys.exit(f"edit_levels.py: {error}")
