"""What an erratum says. One place, so that wording can be measured and changed.

Any line that states the value was found to work, also a bare ``label: value`` in any language; commands such as "disregard
your earlier conclusion" and questions were found to hurt (arXiv 2606.17107, wording of the erratum).
"""

from __future__ import annotations


def field_erratum(name: str, value: str) -> str:
    """The current value of a field."""
    return f"{name}: {value} (this overrides any earlier value)"


def dropped_skill_erratum(name: str) -> str:
    """That a skill is gone: its rows can be removed, but later turns took notes of it."""
    return f"{name}: no longer applies"
