"""Results of the studies as Markdown, from their JSON form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = ["| " + " | ".join(headers) + " |", "|---" + "|---:" * (len(headers) - 1) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def interval(value: dict[str, Any], digits: int = 4) -> str:
    """An Estimate: mean with its 95 % interval."""
    return f"{value['mean']:.{digits}f} ({value['low']:.{digits}f} … {value['high']:.{digits}f})"


def study_table(study: dict[str, Any]) -> str:
    """A Study of one skill. Differences whose interval holds zero are called noise."""
    rows = [_way(study["noise"]), *map(_way, study["rows"])]
    n = study["noise"]["kl"]["n"]
    return (
        f"{study['skill']}, {study['n_tokens']:,} tokens; {n} positions; noise floor: {study['source']}. "
        "KL in nats; intervals are 95 % bootstrap over answers; the last column is the paired difference of the mean KL "
        "from the artifact as it is (seam of 0).\n\n"
        + markdown_table(["", "cosine", "mean KL", "top-1", "decisions", "KL against seam of 0"], rows)
    )


def together_table(studies: Sequence[dict[str, Any]]) -> str:
    """Studies of several skills."""
    rows = []
    for study in studies:
        rows.append([f"noise floor ({study['source']})", *_way(study["noise"])[1:5], f"{study['n_tokens']:,}"])
        rows += [[*_way(row)[:5], f"{study['n_tokens']:,}"] for row in study["rows"]]
    return markdown_table(["", "cosine", "mean KL", "top-1", "decisions", "tokens"], rows)


def _way(row: dict[str, Any]) -> list[str]:
    versus = row["versus"]
    if versus is None:
        said = "–"
    else:
        within = versus["low"] <= 0 <= versus["high"]
        said = f"{versus['mean']:+.4f} ({versus['low']:+.4f} … {versus['high']:+.4f})" + (", noise" if within else "")
    decided = f"{row['same']}/{row['decisions']}" if row["decisions"] else "–"
    return [row["way"], f"{row['cosine']:.5f}", interval(row["kl"]), f"{row['top1']['mean']:.3f}", decided, said]
