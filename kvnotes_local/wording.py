"""Words that depend on a number."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """``1 token``, ``2,000 tokens``: for nouns whose plural takes an s."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
