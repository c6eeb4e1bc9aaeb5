"""What happens when a chat fills its context."""

from __future__ import annotations

from enum import StrEnum


class OnFull(StrEnum):
    """DROP_OLDEST: the oldest turns leave the cache; what stays is moved, not read again. REFUSE: the question is refused."""

    DROP_OLDEST = "drop-oldest"
    REFUSE = "refuse"
