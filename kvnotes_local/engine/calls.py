"""The calls that go to the engine process, read off the Engine protocol: a new method there is a new call here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, get_type_hints

from kvnotes_local.engine.protocol import (
    CompileEvent,
    Engine,
    EngineParams,
    ModelInfo,
    Sampling,
    StopReason,
    TokenEvent,
)
from kvnotes_local.engine.wire import WireError, from_wire

CALLBACKS: Mapping[str, Any] = {"progress": tuple[int, int], "listen": CompileEvent}
"""Arguments that are callbacks, with the type of what they are told; their calls come back as messages."""

QUICK = frozenset({"tokenize", "detokenize"})
"""Calls that neither touch the context nor wait for it: they are answered while another one runs."""

_APART = {"info", "generate", "cancel", "close"}


@dataclass(frozen=True)
class CallType:
    """Types of a call's arguments and of its value. ``required``: arguments without a default."""

    name: str
    arguments: Mapping[str, Any]
    required: frozenset[str]
    returns: Any

    def read_arguments(self, payload: Any, raw: memoryview) -> dict[str, Any]:
        """Checked arguments. Raises WireError."""
        if not isinstance(payload, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in payload):
            raise WireError(f"The arguments of {self.name} are no list of pairs.")
        given = {name: value for name, value in payload if isinstance(name, str)}
        if given.keys() - self.arguments.keys() or self.required - given.keys():
            raise WireError(f"{self.name} was called with {', '.join(given) or 'nothing'}.")
        return {name: from_wire(self.arguments[name], value, raw) for name, value in given.items()}


@dataclass(frozen=True)
class Loaded:
    """A model is ready. ``params``: with what was chosen."""

    info: ModelInfo
    params: EngineParams


@dataclass(frozen=True)
class GenerationStep:
    """How a generation stands after one more event (None: it has ended). ``tokens``: those since the step before."""

    event: TokenEvent | None
    tokens: tuple[int, ...]
    n_cached: int
    stop_reason: StopReason | None
    seconds: float
    end_token: int | None


def _call_type(name: str, function: Any) -> CallType:
    hints = get_type_hints(function)
    parameters = {
        key: value for key, value in signature(function).parameters.items() if key not in {"self", *CALLBACKS}
    }
    required = frozenset(key for key, value in parameters.items() if value.default is value.empty)
    return CallType(name, {key: hints[key] for key in parameters}, required, hints["return"])


def _load(model_path: str, params: EngineParams, cache_dir: str | None) -> Loaded:
    raise NotImplementedError


def _generate(seq: int, sampling: Sampling, max_tokens: int) -> int:
    """Number of a generation that has not begun."""
    raise NotImplementedError


def _next_token(generation: int) -> GenerationStep:
    raise NotImplementedError


def _end_generation(generation: int) -> GenerationStep:
    raise NotImplementedError


LOAD, GENERATE, NEXT_TOKEN, END_GENERATION = "load", "generate", "next_token", "end_generation"

CALLS: Mapping[str, CallType] = {
    **{
        name: _call_type(name, function)
        for name, function in vars(Engine).items()
        if not name.startswith("_") and name not in _APART
    },
    LOAD: _call_type(LOAD, _load),
    GENERATE: _call_type(GENERATE, _generate),
    NEXT_TOKEN: _call_type(NEXT_TOKEN, _next_token),
    END_GENERATION: _call_type(END_GENERATION, _end_generation),
}
"""Every call by its name."""
