"""How far an edit goes: from one appended line to reading everything again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EditLevel(StrEnum):
    """Levels of an edit, by rising cost.

    ERRATUM: one line at the end states the value; nothing that was read is touched. FIELD: the value is replaced in place,
    what follows is moved. FIELD_ERRATUM: both. WINDOW: as FIELD, and the tokens that follow are computed anew, with an erratum
    where the window ends before the chat does. FULL: everything behind the value is computed anew. AUTO: the cheapest whose
    next token agrees with the one that the next level gives.
    """

    ERRATUM = "erratum"
    FIELD = "field"
    FIELD_ERRATUM = "field+erratum"
    WINDOW = "window"
    FULL = "full"
    AUTO = "auto"


LADDER = (EditLevel.ERRATUM, EditLevel.FIELD_ERRATUM, EditLevel.FULL)
"""What AUTO climbs. FIELD and WINDOW are not in it: they were measured to agree with reading afresh less often than levels
that cost less (docs/editing.md)."""

DEFAULT_WINDOW = 64


@dataclass(frozen=True)
class EditResult:
    """What an edit did. ``decoded``: tokens computed for it, of which ``trial`` only to find the level; ``reason``: why this
    level, in words."""

    field: str
    value: str
    level: EditLevel
    decoded: int
    moved: int
    reason: str
    trial: int = 0
