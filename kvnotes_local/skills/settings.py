"""What a skill may say about its own handling, in the ``metadata`` of its SKILL.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvnotes_local.contract.store_type import StoreType


@dataclass(frozen=True)
class SkillSettings:
    """``kvnotes.*`` keys of a skill's metadata.

    ``pin`` (``kvnotes.pin: true``): ``skills gc`` leaves its artifacts alone.
    ``repair`` (``kvnotes.repair: 32``): seam tokens to decode when splicing; None leaves it to the gate.
    ``store`` (``kvnotes.store: q8_0``): how its artifacts are stored; None leaves it to the caller.
    ``fields_in_code`` (``kvnotes.fields-in-code: true``): fields inside code are fields as anywhere else.
    """

    pin: bool = False
    repair: int | None = None
    store: StoreType | None = None
    fields_in_code: bool = False


_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
MAX_REPAIR = 4096
_SWITCHES = ("kvnotes.pin", "kvnotes.fields-in-code")
_KNOWN = (*_SWITCHES, "kvnotes.repair", "kvnotes.store")


def read_settings(metadata: Mapping[str, str]) -> tuple[SkillSettings, tuple[str, ...]]:
    """Settings and a warning for each value that makes no sense (which is then left at its default)."""
    settings = SkillSettings()
    warnings: list[str] = []
    for key, raw in metadata.items():
        if not key.startswith("kvnotes."):
            continue
        value = raw.strip().lower()
        if key in _SWITCHES:
            if value not in _TRUE and value not in _FALSE:
                warnings.append(f"{key} is {raw!r}; it is ignored, write true or false")
            elif key == "kvnotes.pin":
                settings = replace(settings, pin=value in _TRUE)
            else:
                settings = replace(settings, fields_in_code=value in _TRUE)
        elif key == "kvnotes.repair":
            if value.isascii() and value.isdigit() and len(value) <= 6 and int(value) <= MAX_REPAIR:
                settings = replace(settings, repair=int(value))
            elif value != "auto":
                warnings.append(f"kvnotes.repair is {raw!r}; it is ignored, write 0 to {MAX_REPAIR} tokens, or auto")
        elif key == "kvnotes.store":
            try:
                settings = replace(settings, store=StoreType(value))
            except ValueError:
                warnings.append(f"kvnotes.store is {raw!r}; it is ignored, write {' or '.join(StoreType)}")
        else:
            warnings.append(f"{key} is no known setting; it is ignored (known: {', '.join(_KNOWN)})")
    return settings, tuple(warnings)
