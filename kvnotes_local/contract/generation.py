"""Drawing tokens: the parameters, the events, and what a generation has come to."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True)
class Sampling:
    """Parameters of llama.cpp's samplers; temperature 0 is greedy. ``grammar`` is GBNF."""

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int = 0
    grammar: str | None = None


class StopReason(StrEnum):
    """Why a generation ended."""

    END = "end"
    LENGTH = "length"
    STOPPED = "stopped"


@dataclass(frozen=True)
class TokenEvent:
    """One generated token; ``text`` holds the characters it completed (may be empty inside a multi-byte character)."""

    token: int
    text: str


@dataclass
class Generation:
    """A running generation: iterate it for the tokens; afterwards ``stop_reason`` and ``seconds`` are set.

    ``n_cached`` of ``tokens`` are in the cache: the last token drawn is not decoded until it is needed.
    """

    events: Generator[TokenEvent, None, None] | None = None
    tokens: list[int] = field(default_factory=list)
    n_cached: int = 0
    stop_reason: StopReason | None = None
    seconds: float = 0.0
    end_token: int | None = None

    def __iter__(self) -> Iterator[TokenEvent]:
        return iter(()) if self.events is None else self.events

    def close(self) -> None:
        """End it here; the tokens so far stay."""
        if self.events is not None:
            self.events.close()
