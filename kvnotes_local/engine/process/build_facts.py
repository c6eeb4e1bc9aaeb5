"""What this build of llama.cpp can do on this machine, asked of a child: loading a broken library or driver may kill the process
that does it, and the screens' process must not be that one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import msgspec

from kvnotes_local.engine.llama.build_check import ChildResult, run_child
from kvnotes_local.engine.process.supervision import exit_cause
from kvnotes_local.errors import EngineError

_COMMAND = (sys.executable, "-m", "kvnotes_local.engine.process.build_facts")


@dataclass(frozen=True)
class BuildFacts:
    """``has_gpu``: can it compute on one? ``system``: its devices and CPU features in words."""

    has_gpu: bool
    system: str


class BuildBroken(EngineError):
    """llama.cpp cannot be loaded. ``cause``: why, in words."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"llama.cpp cannot be loaded: {cause}. `kvnotes doctor` says what to do.")
        self.cause = cause


def ask_build(run: Callable[[Sequence[str]], ChildResult] = run_child) -> BuildFacts:
    """Takes as long as loading llama.cpp does. Raises BuildBroken."""
    tried = run(_COMMAND)
    last = (tried.output.strip().splitlines() or ["it said nothing"])[-1]  # what drivers print comes before
    if tried.returncode != 0:
        raise BuildBroken(last if tried.returncode == 1 else f"the process {exit_cause(tried.returncode)}")
    try:
        return msgspec.json.decode(last, type=BuildFacts)
    except msgspec.MsgspecError as error:
        raise BuildBroken(f"it said {last!r} of itself") from error


@cache
def has_gpu() -> bool:
    """Can llama.cpp compute on a GPU here? Asked once. Raises BuildBroken, then asked again the next time."""
    return ask_build().has_gpu


def _main() -> None:
    from kvnotes_local.engine.llama import native

    facts = BuildFacts(has_gpu=native.supports_gpu(), system=native.system_info())
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(facts) + b"\n")


if __name__ == "__main__":
    _main()
