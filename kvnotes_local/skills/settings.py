"""What a skill may say about its own handling, in the ``metadata`` of its SKILL.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvnotes_local.contract.store_type import StoreType


@dataclass(frozen=True)
class SkillSettings:
    """``kvnotes.*`` keys of a skill's metadata.

    ``pin`` (``kvnotes.pin: true``): ``skills gc`` leaves its artifacts alone.
    ``repair`` (``kvnotes.repair: 32``): seam tokens to decode when splicing; None leaves it to the gate.
    ``store`` (``kvnotes.store: q8_0``): how its artifacts are stored; None leaves it to the caller.
    """

    pin: bool = False
    repair: int | None = None
    store: StoreType | None = None


_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
MAX_REPAIR = 4096


def read_settings(metadata: Mapping[str, str]) -> tuple[SkillSettings, tuple[str, ...]]:
    """Settings and a warning for each value that makes no sense (which is then left at its default)."""
    pin, repair, store = False, None, None
    warnings: list[str] = []
    for key, raw in metadata.items():
        if not key.startswith("kvnotes."):
            continue
        value = raw.strip().lower()
        if key == "kvnotes.pin":
            if value in _TRUE or value in _FALSE:
                pin = value in _TRUE
            else:
                warnings.append(f"kvnotes.pin is {raw!r}; it is ignored, write true or false")
        elif key == "kvnotes.repair":
            if value.isascii() and value.isdigit() and len(value) <= 6 and int(value) <= MAX_REPAIR:
                repair = int(value)
            elif value != "auto":
                warnings.append(f"kvnotes.repair is {raw!r}; it is ignored, write 0 to {MAX_REPAIR} tokens, or auto")
        elif key == "kvnotes.store":
            try:
                store = StoreType(value)
            except ValueError:
                warnings.append(f"kvnotes.store is {raw!r}; it is ignored, write {' or '.join(StoreType)}")
        else:
            warnings.append(
                f"{key} is no known setting; it is ignored (known: kvnotes.pin, kvnotes.repair, kvnotes.store)"
            )
    return SkillSettings(pin, repair, store), tuple(warnings)
