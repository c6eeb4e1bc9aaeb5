"""What it takes to open a model, as people say it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvnotes_local.contract.params import EngineParams
    from kvnotes_local.kv.layout import GGMLType


class KvType(StrEnum):
    """Element types of the live cache, by llama.cpp's names."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q5_1 = "q5_1"
    Q5_0 = "q5_0"
    Q4_1 = "q4_1"
    Q4_0 = "q4_0"
    IQ4_NL = "iq4_nl"

    @property
    def ggml(self) -> GGMLType:
        from kvnotes_local.kv.layout import GGMLType  # here: it loads numpy, which --help can do without

        return GGMLType[self.name]


@dataclass(frozen=True)
class EngineOptions:
    """What it takes to open a model."""

    model: str | None = None
    kv_type: KvType = KvType.F16
    n_ctx: int = 0
    n_gpu_layers: int = -1
    threads: int = 0
    cache_dir: Path | None = None
    isolate: bool = False
    fast_buffers: bool = True
    sequences: int = 0

    def params(self, *, n_ctx: int = 0) -> EngineParams:
        """The same for an engine. ``n_ctx``: where people leave it to us."""
        from kvnotes_local.contract.params import EngineParams

        return EngineParams(
            n_ctx=self.n_ctx or n_ctx,
            type_k=self.kv_type.ggml,
            type_v=self.kv_type.ggml,
            n_gpu_layers=self.n_gpu_layers,
            n_threads=self.threads,
            extra_buffers=self.fast_buffers,
            n_sequences=self.sequences,
        )
