"""How fast this machine reads and splices with each model: measured by batches, remembered for plans and for lint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from kvnotes_local.records import CachedRecord

FILE_NAME = "speeds.json"


@dataclass(frozen=True)
class ModelSpeed:
    """Measured on this machine.

    ``prefill``: tokens per second. ``splice_seconds``: of a splice of no length; ``splice_token_seconds``: for each token
    more. Both are 0 where splicing was not measured.
    """

    prefill: Annotated[float, Meta(gt=0, lt=1e12)]
    splice_seconds: Annotated[float, Meta(ge=0, lt=1e12)] = 0.0
    splice_token_seconds: Annotated[float, Meta(ge=0, lt=1e12)] = 0.0

    def pays_off_from(self, repair_tokens: int) -> int | None:
        """Length in tokens from which splicing is faster than reading; None where that is not known or never.

        Reading n tokens takes n / prefill. Splicing them takes the seam, which is read, and what was measured.
        """
        gain = 1 / self.prefill - self.splice_token_seconds
        if not self.splice_seconds or gain <= 0:
            return None
        return int((repair_tokens / self.prefill + self.splice_seconds) / gain) + 1


class SpeedMemory:
    """Speeds by model fingerprint, in one file of the cache directory; losing it costs a measurement."""

    def __init__(self, cache_dir: Path) -> None:
        self._record = CachedRecord(cache_dir / FILE_NAME, dict[str, ModelSpeed])

    def get(self, fingerprint: str) -> ModelSpeed | None:
        """The speed of a model; None where none was measured."""
        return (self._record.load() or {}).get(fingerprint)

    def put(self, fingerprint: str, speed: ModelSpeed) -> None:
        """Remember a speed; a cache that cannot be written is not worth a message."""
        self._record.save({**(self._record.load() or {}), fingerprint: speed})

    def learn_prefill(self, fingerprint: str, prefill: float | None) -> None:
        """Remember tokens per second where nothing is known yet; what a batch measured is better. None is nothing to learn."""
        if prefill is not None and self.get(fingerprint) is None:
            self.put(fingerprint, ModelSpeed(prefill))
