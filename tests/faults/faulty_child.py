"""The engine process with a fault in it: ``python -m tests.faults.faulty_child WHERE HOW BULLETS PARENT_PID``.

The fault strikes at each call of the function WHERE for which there is a file in the folder BULLETS, which it takes away. It is a
real death (a signal), or a hang as of a device that does not answer. All else is the engine process as it is.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api

from kvnotes_local.engine import llama_engine
from kvnotes_local.engine.compiling import artifact_compiler
from kvnotes_local.engine.llama.context import LlamaContext
from kvnotes_local.engine.llama.pulse import PULSE
from kvnotes_local.engine.process import child as child_process
from kvnotes_local.engine.sequences.rows_transfer import RowsTransfer

WHERE: dict[str, tuple[Any, str]] = {
    "load": (api, "llama_model_load_from_file"),
    "decode": (api, "llama_decode"),
    "splice": (RowsTransfer, "write"),
    "restore": (LlamaContext, "set_state"),
    "snapshot": (llama_engine, "save_state"),
    "compile": (artifact_compiler, "write_artifact"),
    "speak": (child_process.FrameWriter, "write"),
}


def strike(how: str, bullets: Path, args: Sequence[Any]) -> None:
    for bullet in sorted(bullets.iterdir()):
        bullet.unlink()
        if how == "hang":
            time.sleep(600)
        elif how == "babble":
            args[0]._file.write(b"\xff" * 64)
        else:
            os.kill(os.getpid(), getattr(signal, how))
        return


loaded = threading.Event()
"""Set when the model is ready; only the fault "load" strikes before."""


def load(server: child_process.EngineServer, *args: Any, **kwargs: Any) -> Any:
    result = _load(server, *args, **kwargs)
    loaded.set()
    return result


_load = child_process.EngineServer._load


def arm(owner: Any, name: str, how: str, bullets: Path) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def struck(*args: Any, **kwargs: Any) -> Any:
        if loaded.is_set():
            strike(how, bullets, args)
        return original(*args, **kwargs)

    setattr(owner, name, struck)


if __name__ == "__main__":
    where, how, bullets = sys.argv[1:4]
    del sys.argv[1:4]
    PULSE.least_seconds = PULSE.first_seconds = 1.5
    child_process.EngineServer._load = load  # type: ignore[method-assign]
    if where == "load":
        loaded.set()
    arm(*WHERE[where], how, Path(bullets))
    child_process.main()
