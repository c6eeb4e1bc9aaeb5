"""What was measured about splicing one artifact: as good as reading, with how many seam tokens, or not at all.

A verdict holds for one artifact (whose key stands for the skill's text, the model and all else that its rows depend on), one
KV type and one build of llama.cpp. Where any of them changes there is no verdict until it is measured again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvnotes_local.contract.model_info import ModelInfo, release
from kvnotes_local.errors import KvnotesError
from kvnotes_local.records import CachedRecord, Count, Finite

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
    repair_tokens: Count
    cosine_mean: Finite
    kl_mean: Finite
    noise_kl_mean: Finite
    top1_agreement: Finite
    noise_top1_agreement: Finite
    n_positions: Count
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
        verdict = _record(self._path(conditions)).load()
        return verdict if verdict is not None and verdict.conditions == conditions else None

    def list(self) -> tuple[Verdict, ...]:
        """All verdicts that can be read."""
        found = (_record(path).load() for path in sorted(self.directory.glob("*.json")))
        return tuple(one for one in found if one is not None)

    def put(self, verdict: Verdict) -> None:
        """Keep a verdict; an older one under the same conditions is replaced. Raises KvnotesError."""
        path = self._path(verdict.conditions)
        error = _record(path).save(verdict)
        if error is not None:
            raise KvnotesError(
                f"The verdict on {verdict.skill} cannot be written to {path}: {error.strerror or error}. Use another --cache-dir."
            ) from error

    def forget(self, conditions: Conditions) -> None:
        """Remove the verdict under these conditions, if there is one."""
        self._path(conditions).unlink(missing_ok=True)

    def _path(self, conditions: Conditions) -> Path:
        name = json.dumps([conditions.artifact_key, conditions.kv_type, conditions.build])
        return self.directory / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"


def _record(path: Path) -> CachedRecord[Verdict]:
    return CachedRecord(path, Verdict, _FORMAT, _MAX_BYTES)
