"""In what element type artifacts are kept."""

from __future__ import annotations

from enum import StrEnum


class StoreType(StrEnum):
    """Element type of an artifact's keys and values: F16 as computed, or Q8_0 at half the size."""

    F16 = "f16"
    Q8_0 = "q8_0"
