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

import pytest

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.session.opening import opener
from tests.conftest import REPOSITORY
from tests.tui.conftest import Play
from tests.tui.fake_engine import Script
from tests.tui.stage import Stage, places

KEYS = 60
LIMIT_SECONDS = 0.050


async def key_times(stage: Stage) -> list[float]:
    """Seconds from a key press to its letter in the composer, while the app does what it does.

    Processor time of all threads: what a key waits for on a machine that has nothing else to do, since Python's threads take
    turns. Time that other programs take does not count.
    """
    times = []
    area = stage.composer.area
    for number in range(KEYS):
        key = "abcdefghij"[number % 10]
        n_before = len(area.text)
        began = time.process_time()
        stage.app.simulate_key(key)
        while len(area.text) == n_before:
            await asyncio.sleep(0)  # a turn of the event loop
        times.append(time.process_time() - began)
    return times


def p95(times: list[float]) -> float:
    return statistics.quantiles(times, n=20)[-1]


def test_keys_are_answered_while_tokens_stream_and_while_a_model_loads(play: Play) -> None:
    """The engine speaks as fast as Python can: no clock decides how much there is to show."""

    async def scene(stage: Stage) -> None:
        loading = await key_times(stage)
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
            streaming = await key_times(stage)
        finally:
            stop.set()
            speaker.join()
        stage.script.end()
        await stage.idle()
        assert p95(loading) <= LIMIT_SECONDS
        assert p95(streaming) <= LIMIT_SECONDS

    script = Script(answer=None)
    script.loading.close()
    play(scene, script=script, ready=False)


@pytest.mark.model
@pytest.mark.slow
def test_keys_are_answered_while_the_real_model_reads_and_speaks(
    play: Play, tmp_path: Path, smollm2_path: Path
) -> None:
    async def scene(stage: Stage) -> None:
        loading = await key_times(stage)
        await stage.idle()
        stage.composer.write("Count from one to five hundred in words.")
        await stage.pilot.press("enter")
        reading = await key_times(stage)
        await stage.until(lambda: stage.app.session.answering and len(stage.text) > 0)
        streaming = await key_times(stage)
        await stage.pilot.press("escape")
        await stage.idle()
        assert max(p95(loading), p95(reading), p95(streaming)) <= LIMIT_SECONDS

    play(
        scene,
        ready=False,
        model=smollm2_path,
        params=EngineParams(n_ctx=2048, n_threads=1),
        open_engine=opener(places(tmp_path), isolate=True),
    )


BARE = "import time, textual.app, textual.widgets; print(time.process_time())"
PAINT = """
import sys, time
from pathlib import Path
from kvnotes_local.tui.app import KvnotesApp
from kvnotes_local.tui.start import Start
from kvnotes_local.session.places import Places
assert "llama_cpp" not in sys.modules
here = Path(sys.argv[1])
times = []

class Once(KvnotesApp):
    def on_ready(self):
        self.call_after_refresh(self.painted)

    def painted(self):
        times.append(time.process_time())
        self.exit()

Once(Start(Places(here, here, here, here, only_given=True), None)).run(headless=True)
print(times[0])
"""
HELP = """
import atexit, sys, time
from kvnotes_local import __main__ as main
assert not {"textual", "llama_cpp", "numpy"} & set(sys.modules)
atexit.register(lambda: print(time.process_time()))
sys.argv = ["kvnotes", "--help"]
main.run()
"""


def cpu_seconds(program: str, *arguments: str) -> float:
    """Processor time that a Python program prints at its end, the best of three: other programs do not count."""
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}

    def run() -> float:
        command = [sys.executable, "-c", program, *arguments]
        out = subprocess.run(command, check=True, capture_output=True, env=env, text=True).stdout
        return float(out.split()[-1])

    return min(run() for _ in range(3))


def test_the_first_picture_comes_soon(tmp_path: Path) -> None:
    """Relative to importing textual alone, which takes a fifth of a second on a quiet machine: less than a second then."""
    assert cpu_seconds(PAINT, str(tmp_path)) <= 5 * cpu_seconds(BARE) + 0.2


def test_help_comes_at_once_and_without_textual() -> None:
    assert cpu_seconds(HELP) <= 1.2 * cpu_seconds(BARE)
