"""What is offered after a second crash, decided from facts that are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.process.build_facts import BuildBroken
from kvnotes_local.errors import EngineCrashed
from kvnotes_local.tui.workbench.crash_watch import CrashWatch


def broken() -> bool:
    raise BuildBroken("the process ended with SIGSEGV")


@pytest.mark.parametrize(
    ("has_gpu", "change"),
    [
        (lambda: True, "without the GPU"),
        (lambda: False, "with a context of 4,096 tokens"),
        (broken, "without the GPU"),
    ],
    ids=["a GPU", "no GPU", "a build that cannot be asked"],
)
def test_leaving_the_gpu_out_is_offered_where_there_may_be_one(has_gpu: object, change: str) -> None:
    watch = CrashWatch(has_gpu)  # type: ignore[arg-type]
    watch.asked = Path("model.gguf"), EngineParams(n_ctx=8192, extra_buffers=False)
    error = EngineCrashed("It died.", operation="apply", again=True)
    offer = watch.after("Answering", error, n_ctx=8192, n_held=100)
    assert offer is not None
    assert change in offer.change
