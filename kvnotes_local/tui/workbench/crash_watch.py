"""Crashes of the engine as people meet them: after the second one in the same work a safer setting is offered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.process.supervision import safer_settings
from kvnotes_local.errors import EngineCrashed, EngineError, KvnotesError

_ROOM = 512
"""Tokens that a chat needs beside what it holds."""


@dataclass(frozen=True)
class SaferSetting:
    """The model at ``path`` with ``params`` that are less likely to crash; ``change`` says in words in what they differ."""

    path: Path
    params: EngineParams
    change: str


def _has_gpu() -> bool:
    from kvnotes_local.engine.process.build_facts import has_gpu  # here: asked after crashes only

    return has_gpu()


class CrashWatch:
    """``asked``: the model that is loaded or being loaded, and how. ``has_gpu``: can llama.cpp compute on one here?"""

    def __init__(self, has_gpu: Callable[[], bool] = _has_gpu) -> None:
        self._has_gpu = has_gpu
        self.asked: tuple[Path, EngineParams] | None = None
        self._crashed = ""

    def done(self, what: str) -> None:
        """This work got through."""
        if what == self._crashed:
            self._crashed = ""

    def after(self, what: str, error: KvnotesError, *, n_ctx: int, n_held: int) -> SaferSetting | None:
        """A setting to offer after this work failed so; None where it was no second crash, or nothing safer is left.

        ``n_ctx``: of the loaded model, 0 for none; ``n_held``: tokens of the open chat.
        """
        if not isinstance(error, EngineCrashed) or self.asked is None:
            return None
        is_second = error.again or what == self._crashed
        self._crashed = what
        if not is_second:
            return None
        path, params = self.asked
        before = replace(params, n_ctx=n_ctx or params.n_ctx)
        for safer in safer_settings(before):
            change = self._change(before, safer)
            if change and (safer.n_ctx == before.n_ctx or safer.n_ctx >= n_held + _ROOM):
                return SaferSetting(path, safer, change)
        return None

    def _change(self, before: EngineParams, after: EngineParams) -> str:
        """ "" where a difference would change nothing on this machine."""
        parts = []
        if before.extra_buffers != after.extra_buffers:
            parts.append("without fast buffers")
        if before.n_gpu_layers != after.n_gpu_layers and self._may_have_gpu():
            parts.append("without the GPU")
        if before.n_ctx != after.n_ctx:
            parts.append(f"with a context of {after.n_ctx:,} tokens")
        return ", ".join(parts)

    def _may_have_gpu(self) -> bool:
        """A build that cannot even be asked may be broken by its GPU's driver."""
        try:
            return self._has_gpu()
        except EngineError:
            return True
