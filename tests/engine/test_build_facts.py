"""What is asked of a short-lived child about the build of llama.cpp, so that the asking process need not load it."""

from __future__ import annotations

import pytest

from kvnotes_local.engine.llama import native
from kvnotes_local.engine.llama.build_check import ChildResult
from kvnotes_local.engine.process.build_facts import BuildBroken, BuildFacts, ask_build

FACTS = '{"has_gpu":true,"system":"with GPU offload"}'


def test_the_child_says_what_this_process_would_find_out() -> None:
    assert ask_build() == BuildFacts(native.supports_gpu(), native.system_info())


def test_what_a_driver_prints_before_is_passed_over() -> None:
    facts = ask_build(lambda command: ChildResult(0, f"ggml_cuda_init: found 1 device\n\n{FACTS}\n"))
    assert facts == BuildFacts(has_gpu=True, system="with GPU offload")


@pytest.mark.parametrize(
    ("result", "cause"),
    [
        (ChildResult(1, "Traceback …\nOSError: libllama.so is missing\n"), "OSError: libllama.so is missing"),
        (ChildResult(1, ""), "it said nothing"),
        (ChildResult(-11, FACTS), "the process ended with SIGSEGV"),
        (ChildResult(None, ""), "the process did not end"),
        (ChildResult(0, ""), "it said nothing"),
        (ChildResult(0, "[]"), "it said"),
        (ChildResult(0, '{"has_gpu":1,"system":""}'), "it said"),
    ],
)
def test_a_build_that_cannot_be_asked_is_broken_for_a_reason(result: ChildResult, cause: str) -> None:
    with pytest.raises(BuildBroken, match="`kvnotes doctor`") as caught:
        ask_build(lambda command: result)
    assert cause in caught.value.cause
