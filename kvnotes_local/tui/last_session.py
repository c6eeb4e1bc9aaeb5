"""What was on the desk when the app was left, so that it can go on there."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.records import CachedRecord, write_record

FILE_NAME = "last_session.json"
_Count = Annotated[int, Meta(ge=0, lt=1 << 31)]


@dataclass(frozen=True)
class _ChosenParams:
    """What users choose of the parameters."""

    n_ctx: _Count
    kv_type: str
    n_gpu_layers: Annotated[int, Meta(ge=-1, lt=1 << 31)]
    n_threads: _Count
    fast_buffers: bool


@dataclass(frozen=True)
class _Stored:
    model: Path | None
    params: _ChosenParams
    chat: str | None
    draft: str


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
        stored = CachedRecord(directory / FILE_NAME, _Stored).load()
        if stored is None or stored.params.kv_type not in GGMLType.__members__:
            return cls()
        params, kv_type = stored.params, GGMLType[stored.params.kv_type]
        return cls(
            stored.model,
            EngineParams(
                n_ctx=params.n_ctx,
                type_k=kv_type,
                type_v=kv_type,
                n_gpu_layers=params.n_gpu_layers,
                n_threads=params.n_threads,
                extra_buffers=params.fast_buffers,
            ),
            stored.chat,
            stored.draft,
        )

    def save(self, directory: Path) -> None:
        """Raises OSError."""
        one = self.params
        params = _ChosenParams(one.n_ctx, one.type_k.name, one.n_gpu_layers, one.n_threads, one.extra_buffers)
        write_record(directory / FILE_NAME, _Stored(self.model, params, self.chat, self.draft))
