"""What is kept with a chat besides its text: how answers are drawn, and what its cache looked like."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from kvnotes_local.contract.generation import Sampling
from kvnotes_local.contract.model_info import ModelInfo
from kvnotes_local.notebook.on_full import OnFull
from kvnotes_local.records import as_plain, as_type
from kvnotes_local.small_file import parse_json

DEFAULT_MAX_TOKENS = 512


@dataclass(frozen=True)
class ChatParams:
    """``max_tokens``: the longest answer. ``on_full``: what happens when the context is full. ``type_k``, ``type_v`` and
    ``n_ctx``: of the context that the chat was last held in, for the record."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: Annotated[int, Meta(ge=1)] = DEFAULT_MAX_TOKENS
    on_full: OnFull = OnFull.DROP_OLDEST
    type_k: str = ""
    type_v: str = ""
    n_ctx: int = 0

    @classmethod
    def of(cls, info: ModelInfo, sampling: Sampling, max_tokens: int, on_full: OnFull) -> ChatParams:
        """With the context of a loaded model."""
        return cls(sampling, max_tokens, on_full, info.type_k.name, info.type_v.name, info.n_ctx)

    def to_json(self) -> str:
        return json.dumps(as_plain(self))

    @classmethod
    def from_json(cls, text: str) -> ChatParams:
        """Raises ValueError for what ``to_json`` has not written."""
        return as_type(parse_json(text), cls)
