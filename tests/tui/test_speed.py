"""Keys are answered while the engine works, and the first picture comes soon."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import pytest

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.session.opening import opener
from tests.conftest import REPOSITORY
from tests.tui.conftest import Play
from tests.tui.fake_engine import Script
from tests.tui.stage import Stage, places

KEYS = 60
LIMIT_CALLS = 150_000
"""Calls of Python functions, which take about 50 ms. Seen: 5,000 while a model loads, 39,000 while tokens stream."""


async def key_calls(stage: Stage) -> list[int]:
    """Python functions called from a key press to its letter in the composer, by the app doing whatever it does. Unlike seconds,
    they are the same on a machine that is slow or busy."""
    counts = []
    area = stage.composer.area
    n_calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal n_calls
        n_calls += event == "call"

    for number in range(KEYS):
        key = "abcdefghij"[number % 10]
        n_before, n_calls = len(area.text), 0
        sys.setprofile(count)
        try:
            stage.app.simulate_key(key)
            while len(area.text) == n_before:
                await asyncio.sleep(0)  # a turn of the event loop
        finally:
            sys.setprofile(None)
        counts.append(n_calls)
    return counts


def p95(counts: list[int]) -> float:
    return statistics.quantiles(counts, n=20)[-1]


def test_keys_are_answered_while_tokens_stream_and_while_a_model_loads(play: Play) -> None:
    """The engine speaks as fast as Python can: no clock decides how much there is to show."""

    async def scene(stage: Stage) -> None:
        loading = await key_calls(stage)
        stage.script.loading.open()
        await stage.idle()
        stage.composer.write("Speak")
        await stage.pilot.press("enter")
        stop = threading.Event()

        def speak() -> None:
            words = 0
            while not stop.is_set():
                stage.script.say(f" word{words % 50}" + ("\n\n" if words % 40 == 39 else ""))
                words += 1
                time.sleep(0.002)  # 500 tokens a second: faster than any model here

        speaker = threading.Thread(target=speak)
        speaker.start()
        try:
            await stage.until(lambda: "word9" in stage.text)
            streaming = await key_calls(stage)
        finally:
            stop.set()
            speaker.join()
        stage.script.end()
        await stage.idle()
        assert p95(loading) <= LIMIT_CALLS
        assert p95(streaming) <= LIMIT_CALLS

    script = Script(answer=None)
    script.loading.close()
    play(scene, script=script, ready=False)


@pytest.mark.model
@pytest.mark.slow
def test_keys_are_answered_while_the_real_model_reads_and_speaks(
    play: Play, tmp_path: Path, smollm2_path: Path
) -> None:
    async def scene(stage: Stage) -> None:
        loading = await key_calls(stage)
        await stage.idle()
        stage.composer.write("Count from one to five hundred in words.")
        await stage.pilot.press("enter")
        reading = await key_calls(stage)
        await stage.until(lambda: stage.app.session.answering and len(stage.text) > 0)
        streaming = await key_calls(stage)
        await stage.pilot.press("escape")
        await stage.idle()
        assert max(p95(loading), p95(reading), p95(streaming)) <= LIMIT_CALLS

    play(
        scene,
        ready=False,
        model=smollm2_path,
        params=EngineParams(n_ctx=2048, n_threads=1),
        open_engine=opener(places(tmp_path), isolate=True),
    )


COUNT = """
import sys
n_calls = 0

def count(frame, event, argument):
    global n_calls
    n_calls += event == "call"

sys.setprofile(count)
"""
BARE = "import textual.app, textual.widgets; print(n_calls)"
PAINT = """
import sys
from pathlib import Path
from kvnotes_local.tui.app import KvnotesApp
from kvnotes_local.tui.start import Start
from kvnotes_local.session.places import Places
assert "llama_cpp" not in sys.modules
here = Path(sys.argv[1])
counts = []

class Once(KvnotesApp):
    def on_ready(self):
        self.call_after_refresh(self.painted)

    def painted(self):
        counts.append(n_calls)
        self.exit()

Once(Start(Places(here, here, here, here, only_given=True), None)).run(headless=True)
print(counts[0])
"""
HELP = """
import atexit, sys
from kvnotes_local import __main__ as main

def tell():
    assert not {"textual", "llama_cpp", "numpy"} & set(sys.modules)
    print(n_calls)

atexit.register(tell)
sys.argv = ["kvnotes", "--help"]
main.run()
"""


def calls(program: str, *arguments: str) -> int:
    """How many Python functions the main thread of a program has called when it prints ``n_calls``."""
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", COUNT + program, *arguments]
    out = subprocess.run(command, check=True, capture_output=True, env=env, text=True).stdout
    return int(out.split()[-1])


def test_the_first_picture_comes_soon(tmp_path: Path) -> None:
    """Relative to importing textual alone, which takes a fifth of a second on a quiet machine: less than two seconds then."""
    assert calls(PAINT, str(tmp_path)) <= 8 * calls(BARE)


def test_help_comes_at_once_and_without_textual() -> None:
    assert calls(HELP) <= 1.2 * calls(BARE)
