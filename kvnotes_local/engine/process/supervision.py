"""How the end of an engine process is told, and what to try when it ends twice in the same way."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.errors import EngineCrashed

OPERATIONS = {
    "load": "loading the model",
    "apply": "reading or splicing",
    "next_token": "answering",
    "score": "scoring",
    "compile": "compiling a skill",
    "compile_many": "compiling skills",
    "check_artifact": "checking an imported artifact",
    "park": "saving the chat's state",
    "unpark": "restoring the chat's state",
}
"""Calls as people know them."""


_TROUBLE = re.compile("assert|error|fail|abort|exception|out of memory", re.IGNORECASE)


@dataclass(frozen=True)
class Limits:
    """When an engine process counts as stuck. ``beat_seconds``: how often it is looked at; ``missed_beats``: so many looks
    without a sign of life; ``stuck_factor``: how many times the time that a piece of work is allowed."""

    beat_seconds: float = 1.0
    missed_beats: int = 60
    stuck_factor: float = 1.0
    start_seconds: float = 120.0


@dataclass(frozen=True)
class Death:
    """How an engine process ended. ``cause``: in words. ``log``: the last lines that it said."""

    cause: str
    log: tuple[str, ...] = ()


def exit_cause(returncode: int | None) -> str:
    """What an exit code says: a signal's name on POSIX, a status code such as 0xC0000005 on Windows."""
    if returncode is None:
        return "did not end"
    if returncode < 0:
        try:
            name = signal.Signals(-returncode).name
        except ValueError:
            name = f"signal {-returncode}"
        return f"ended with {name}"
    if returncode >= 0xC0000000:
        return f"ended with status {returncode:#x}"
    return f"ended with exit code {returncode}"


def last_words(log: Sequence[str]) -> str:
    """The last line that tells of trouble, "" for none; not those of Python's fault handler, which only say where."""
    before = itertools.takewhile(lambda line: not line.startswith("Fatal Python error"), log)
    return next((line.strip() for line in reversed(list(before)) if _TROUBLE.search(line)), "")


def crash_error(operation: str, death: Death, *, again: bool, params: EngineParams) -> EngineCrashed:
    """The error for a call that the process did not survive. ``again``: it is the second one, see
    EngineCrashed."""
    what = OPERATIONS.get(operation, operation)
    said = last_words(death.log)
    message = f"The engine process {death.cause} while {what}."
    if "SIGKILL" in death.cause:
        message += " Systems do that when memory runs out."
    if said:
        message += f" Its last words: {said[:200]}."
    if again:
        message += f" It did so twice. Nothing is lost; try a safer setting: {advice(params)}."
    return EngineCrashed(message, operation=operation, cause=death.cause, log=death.log, again=again)


def safer_settings(params: EngineParams) -> tuple[EngineParams, ...]:
    """Settings that are less likely to crash, the least costly first."""
    steps = []
    if params.extra_buffers:
        steps.append(params := replace(params, extra_buffers=False))
    if params.n_gpu_layers:
        steps.append(params := replace(params, n_gpu_layers=0))
    if params.n_ctx > 2048:
        steps.append(params := replace(params, n_ctx=params.n_ctx // 2))
    return tuple(steps)


def advice(params: EngineParams) -> str:
    """The safer settings as options of the command line."""
    options: list[str] = []
    before = params
    for safer in safer_settings(params):
        if safer.extra_buffers != before.extra_buffers:
            options.append("--no-fast-buffers")
        if safer.n_gpu_layers != before.n_gpu_layers:
            options.append("--n-gpu-layers 0")
        if safer.n_ctx != before.n_ctx:
            options.append(f"--n-ctx {safer.n_ctx}")
        before = safer
    return ", then ".join(options) or "another --kv-type, or another model file"
