#!/usr/bin/env python3
"""Check the chat format that kvnotes finds in chat templates against the templates' own renderings, token for token.

.venv/bin/python scripts/check_templates.py FOLDER              one line a template (*.jinja), and the counts
.venv/bin/python scripts/check_templates.py FOLDER --json       the same as JSON, with all differences
.venv/bin/python scripts/check_templates.py FOLDER --markdown   the table of docs/models.md

Each template gets a tiny vocabulary in which every marker of it is one token. Chats of every shape that kvnotes produces are put
together from its pieces and compared with the whole rendering, which plain jinja2 makes, set up as Hugging Face does it.
Exits with 1 when a template is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.chat_format.checking import Outcome, Result, check_template

SHOWN = 110
"""Characters of a difference in the lines and in the table."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the *.jinja files are")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="write JSON")
    form.add_argument("--markdown", action="store_true", help="write a table")
    args = parser.parse_args()
    files = sorted(args.folder.glob("*.jinja"))
    if not files:
        print(f"{args.folder} holds no *.jinja file.", file=sys.stderr)
        return 2
    results: dict[str, Result] = {}
    for file in files:
        results[file.stem] = check_template(file.read_text("utf-8"))
        if not args.json and not args.markdown:
            print(line(file.stem, results[file.stem]), flush=True)
    if args.json:
        print(json.dumps({name: as_json(result) for name, result in results.items()}, ensure_ascii=False, indent=2))
    elif args.markdown:
        print(table(results), end="")
    else:
        print(counts(results))
    return int(any(result.outcome is Outcome.WRONG for result in results.values()))


def line(name: str, result: Result) -> str:
    """What came out for a template, in one line."""
    return f"{name}: {result.outcome.value}" + (f" ({told})" if (told := remark(result)) else "")


def remark(result: Result) -> str:
    """What differs, what stands elsewhere, or why the template is not used."""
    if result.differences:
        first, n = result.differences[0], len(result.differences)
        return shortened(str(first)) + (f", and in {n - 1} more" if n > 1 else "")
    return shortened(result.reason) or ", ".join(sorted(place.value for place in result.places))


def shortened(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def counts(results: Mapping[str, Result]) -> str:
    found = Counter(result.outcome for result in results.values())
    rest = ", ".join(f"{found[outcome]} {outcome.value}" for outcome in Outcome if outcome is not Outcome.NO_CHAT)
    chats = len(results) - found[Outcome.NO_CHAT]
    return f"{len(results)} templates, of which {chats} render a plain chat: {rest}"


def table(results: Mapping[str, Result]) -> str:
    """Rows of Markdown, and the counts below."""
    rows = ["| template | result | what differs |", "| --- | --- | --- |"]
    rows += [f"| {name} | {result.outcome.value} | {escaped(remark(result))} |" for name, result in results.items()]
    return "\n".join([*rows, "", counts(results) + ".", ""])


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def as_json(result: Result) -> dict[str, object]:
    return {
        "result": result.outcome.value,
        "places": sorted(place.value for place in result.places),
        "reason": result.reason,
        "differences": [vars(difference) for difference in result.differences],
    }


if __name__ == "__main__":
    sys.exit(main())
