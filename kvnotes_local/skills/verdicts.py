"""What was measured about splicing one artifact: as good as reading, with how many seam tokens, or not at all.

A verdict holds for one artifact (whose key stands for the skill's text, the model and all else that its rows depend on), one
KV type and one build of llama.cpp. Where any of them changes there is no verdict until it is measured again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Any

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.contract.model_info import ModelInfo, release
from kvnotes_local.errors import KvnotesError
from kvnotes_local.small_file import read_json

_FORMAT = 1
_MAX_BYTES = 1 << 16


class Outcome(StrEnum):
    """PASSED: splice it. FAILED: no seam that was tried passes, so the model reads the skill."""

    PASSED = "passed"
    FAILED = "failed"


@dataclass(frozen=True)
class Conditions:
    """What a verdict holds for. ``kv_type``: keys/values of the live cache; ``build``: llama.cpp and where it runs, see
    ``build_of``."""

    artifact_key: str
    kv_type: str
    build: str

    @property
    def kv_name(self) -> str:
        """``Q8_0`` where keys and values are of one type, else both: ``F16/Q8_0``."""
        keys, _, values = self.kv_type.partition("/")
        return keys if keys == values else self.kv_type


@dataclass(frozen=True)
class Verdict:
    """A measured verdict. Means over ``n_positions``; KL in nats. ``repair_tokens``: the cheapest seam that passes (where
    none does, the one that came closest). ``created``: ISO 8601, UTC."""

    conditions: Conditions
    outcome: Outcome
    skill: str
    model: str
    repair_tokens: int
    cosine_mean: float
    kl_mean: float
    noise_kl_mean: float
    top1_agreement: float
    noise_top1_agreement: float
    n_positions: int
    created: str


def conditions_of(info: ModelInfo, artifact_key: str) -> Conditions:
    """What a verdict about this artifact in this engine holds for."""
    return Conditions(artifact_key, f"{info.type_k.name}/{info.type_v.name}", build_of(info))


def build_of(info: ModelInfo) -> str:
    """The release of llama.cpp and what it computes on: another kind of device rounds otherwise."""
    return f"{release(info.llama_cpp_version)}, {'GPU' if info.on_gpu else 'CPU'}"


class VerdictStore:
    """Verdicts below one folder, a small JSON file each; files appear by renaming."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def find(self, conditions: Conditions) -> Verdict | None:
        """The verdict under exactly these conditions; None where there is none, or its file is damaged."""
        try:
            verdict = _parse(read_json(self._path(conditions), _MAX_BYTES))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # missing or damaged: measured again
        return verdict if verdict.conditions == conditions else None

    def list(self) -> tuple[Verdict, ...]:
        """All verdicts that can be read."""
        found = []
        for path in sorted(self.directory.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                found.append(_parse(read_json(path, _MAX_BYTES)))
        return tuple(found)

    def put(self, verdict: Verdict) -> None:
        """Keep a verdict; an older one under the same conditions is replaced. Raises KvnotesError."""
        record = {"format": _FORMAT, **asdict(verdict)}
        path = self._path(verdict.conditions)
        try:
            write_atomically(path, json.dumps(record, indent=1))
        except OSError as error:
            raise KvnotesError(
                f"The verdict on {verdict.skill} cannot be written to {path}: {error.strerror or error}. Use another --cache-dir."
            ) from error

    def forget(self, conditions: Conditions) -> None:
        """Remove the verdict under these conditions, if there is one."""
        self._path(conditions).unlink(missing_ok=True)

    def _path(self, conditions: Conditions) -> Path:
        name = json.dumps([conditions.artifact_key, conditions.kv_type, conditions.build])
        return self.directory / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"


def _parse(record: Any) -> Verdict:
    """Raises ValueError, KeyError or TypeError for what is no verdict."""
    if record.pop("format") != _FORMAT:
        raise ValueError("another format")
    conditions = Conditions(**{field.name: _text(record["conditions"][field.name]) for field in fields(Conditions)})
    numbers = {
        name: _number(record[name])
        for name in ("cosine_mean", "kl_mean", "noise_kl_mean", "top1_agreement", "noise_top1_agreement")
    }
    return Verdict(
        conditions=conditions,
        outcome=Outcome(record["outcome"]),
        skill=_text(record["skill"]),
        model=_text(record["model"]),
        repair_tokens=_count(record["repair_tokens"]),
        n_positions=_count(record["n_positions"]),
        created=_text(record["created"]),
        **numbers,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise TypeError("no number")
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError("no count")
    return value
