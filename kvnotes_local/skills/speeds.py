"""How fast this machine reads and splices with each model: measured by batches, remembered for plans and for lint."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.small_file import read_json

FILE_NAME = "speeds.json"


@dataclass(frozen=True)
class ModelSpeed:
    """Measured on this machine.

    ``prefill``: tokens per second. ``splice_seconds``: of a splice of no length; ``splice_token_seconds``: for each token
    more. Both are 0 where splicing was not measured.
    """

    prefill: float
    splice_seconds: float = 0.0
    splice_token_seconds: float = 0.0

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
        self._path = cache_dir / FILE_NAME

    def get(self, fingerprint: str) -> ModelSpeed | None:
        """The speed of a model; None where none was measured."""
        entry = self._load().get(fingerprint)
        return ModelSpeed(**entry) if entry is not None else None

    def put(self, fingerprint: str, speed: ModelSpeed) -> None:
        """Remember a speed; a cache that cannot be written is not worth a message."""
        try:
            write_atomically(self._path, json.dumps({**self._load(), fingerprint: asdict(speed)}, indent=0))
        except OSError:
            return

    def learn_prefill(self, fingerprint: str, prefill: float | None) -> None:
        """Remember tokens per second where nothing is known yet; what a batch measured is better. None is nothing to learn."""
        if prefill is not None and self.get(fingerprint) is None:
            self.put(fingerprint, ModelSpeed(prefill))

    def _load(self) -> dict[str, dict[str, float]]:
        try:
            data = read_json(self._path)
        except (OSError, ValueError):
            return {}
        return {key: entry for key, entry in data.items() if _is_speed(entry)} if isinstance(data, dict) else {}


def _is_speed(entry: object) -> bool:
    names = ModelSpeed.__dataclass_fields__.keys()
    return (
        isinstance(entry, dict)
        and entry.keys() == names
        and all(type(value) in (int, float) and 0 <= value < 1e12 for value in entry.values())
        and entry["prefill"] > 0
    )
