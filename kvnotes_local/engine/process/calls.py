"""The calls that go to the engine process, read off the Engine protocol: a new method there is a new call here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol, get_type_hints

from kvnotes_local.contract.compile_job import CompileEvent
from kvnotes_local.contract.generation import Sampling, StopReason, TokenEvent
from kvnotes_local.contract.model_info import ModelInfo
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.contract.protocol import Engine
from kvnotes_local.engine.process.wire import WireError, from_wire

CALLBACKS: Mapping[str, Any] = {"progress": tuple[int, int], "listen": CompileEvent}
"""Arguments that are callbacks, with the type of what they are told; their calls come back as messages."""

QUICK = frozenset({"tokenize", "detokenize"})
"""Calls that neither touch the context nor wait for it: they are answered while another one runs."""

_APART = frozenset({"info", "generate", "cancel", "close"})


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


class _ProcessCalls(Protocol):
    """What the process is asked beside the calls of ``Engine``: making the engine, and answers token by token."""

    def load(self, model_path: str, params: EngineParams, cache_dir: str | None) -> Loaded: ...

    def generate(self, seq: int, sampling: Sampling, max_tokens: int) -> int:
        """Number of a generation that has not begun."""
        ...

    def next_token(self, generation: int) -> GenerationStep: ...

    def end_generation(self, generation: int) -> GenerationStep: ...


LOAD, GENERATE, NEXT_TOKEN, END_GENERATION = "load", "generate", "next_token", "end_generation"

CALLS: Mapping[str, CallType] = {
    name: _call_type(name, function)
    for calls, left_out in ((Engine, _APART), (_ProcessCalls, frozenset()))
    for name, function in vars(calls).items()
    if not name.startswith("_") and name not in left_out
}
"""Every call by its name."""
