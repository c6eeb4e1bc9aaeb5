"""What was on the desk when the app was left, so that it can go on there."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.small_file import read_json

FILE_NAME = "last_session.json"


@dataclass(frozen=True)
class LastSession:
    """``draft``: what stood in the composer. ``params``: only what users choose is kept of them."""

    model: Path | None = None
    params: EngineParams = field(default_factory=EngineParams)
    chat: str | None = None
    draft: str = ""

    @classmethod
    def load(cls, directory: Path) -> LastSession:
        """An empty one where there is none, or the file is not one: it only saves some keys."""
        try:
            data: Any = read_json(directory / FILE_NAME)
            params = data["params"]
            return cls(
                model=None if data["model"] is None else Path(str(data["model"])),
                params=EngineParams(
                    n_ctx=_count(params["n_ctx"]),
                    type_k=GGMLType[params["kv_type"]],
                    type_v=GGMLType[params["kv_type"]],
                    n_gpu_layers=_count(params["n_gpu_layers"] + 1) - 1,
                    n_threads=_count(params["n_threads"]),
                    extra_buffers=params["fast_buffers"] is not False,
                ),
                chat=None if data["chat"] is None else str(data["chat"]),
                draft=str(data["draft"]),
            )
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return cls()

    def save(self, directory: Path) -> None:
        """Raises OSError."""
        params = self.params
        data = {
            "model": None if self.model is None else str(self.model),
            "params": {
                "n_ctx": params.n_ctx,
                "kv_type": params.type_k.name,
                "n_gpu_layers": params.n_gpu_layers,
                "n_threads": params.n_threads,
                "fast_buffers": params.extra_buffers,
            },
            "chat": self.chat,
            "draft": self.draft,
        }
        write_atomically(directory / FILE_NAME, json.dumps(data, indent=2) + "\n")


def _count(value: object) -> int:
    number = int(value)  # type: ignore[call-overload]
    if not 0 <= number < 1 << 31:
        raise ValueError(f"{number} is no count")
    return int(number)
