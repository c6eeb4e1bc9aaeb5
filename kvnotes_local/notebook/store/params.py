"""What is kept with a chat besides its text: how answers are drawn, and what its cache looked like."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field

from kvnotes_local.contract.generation import Sampling
from kvnotes_local.contract.model_info import ModelInfo
from kvnotes_local.notebook.on_full import OnFull
from kvnotes_local.wording import counted

DEFAULT_MAX_TOKENS = 512


@dataclass(frozen=True)
class ChatParams:
    """``max_tokens``: the longest answer. ``on_full``: what happens when the context is full. ``type_k``, ``type_v`` and
    ``n_ctx``: of the context that the chat was last held in, for the record."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = DEFAULT_MAX_TOKENS
    on_full: OnFull = OnFull.DROP_OLDEST
    type_k: str = ""
    type_v: str = ""
    n_ctx: int = 0

    @classmethod
    def of(cls, info: ModelInfo, sampling: Sampling, max_tokens: int, on_full: OnFull) -> ChatParams:
        """With the context of a loaded model."""
        return cls(sampling, max_tokens, on_full, info.type_k.name, info.type_v.name, info.n_ctx)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ChatParams:
        """Raises ValueError, TypeError or KeyError for what ``to_json`` has not written."""
        data = json.loads(text)
        sampling = data["sampling"]
        grammar = sampling["grammar"]
        params = cls(
            sampling=Sampling(
                temperature=_number(sampling["temperature"]),
                top_k=int(sampling["top_k"]),
                top_p=_number(sampling["top_p"]),
                min_p=_number(sampling["min_p"]),
                repeat_penalty=_number(sampling["repeat_penalty"]),
                repeat_last_n=int(sampling["repeat_last_n"]),
                seed=int(sampling["seed"]),
                grammar=None if grammar is None else str(grammar),
            ),
            max_tokens=int(data["max_tokens"]),
            on_full=OnFull(data["on_full"]),
            type_k=str(data["type_k"]),
            type_v=str(data["type_v"]),
            n_ctx=int(data["n_ctx"]),
        )
        if params.max_tokens < 1:
            raise ValueError(f"answers of {counted(params.max_tokens, 'token')}")
        return params


def _number(value: object) -> float:
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is no number")
    return number
