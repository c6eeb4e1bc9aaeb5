"""Fixtures for the terminal UI."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.tui.fake_engine import Script
from tests.tui.stage import Stage, on_stage, start

Scene = Callable[[Stage], Awaitable[None]]
Play = Callable[..., Script]


TURNS = 200
"""Turns of the event loop in which what a key sets off runs its course from widget to widget."""


@pytest.fixture(autouse=True)
def turns_instead_of_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual's pilot sleeps after each key until the process uses little processor time, at least 40 ms: half of the time of
    these tests, and on a busy machine no sign that anything has happened. Turns of the loop are one."""

    async def turn(*_: float) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)

    monkeypatch.setattr("textual.pilot.wait_for_idle", turn)
    monkeypatch.setattr("textual.app.wait_for_idle", turn)


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Runs a scene on a stage: ``play(scene, size=(80, 24))``. What is left over from one scene is there in the next."""
    monkeypatch.delenv("NO_COLOR", raising=False)

    def run(
        scene: Scene,
        *,
        script: Script | None = None,
        size: tuple[int, int] = (120, 40),
        ready: bool = True,
        **how: object,
    ) -> Script:
        script = script or Script()

        async def main() -> None:
            async with on_stage(start(tmp_path, script, **how), script, size=size, ready=ready) as stage:
                await scene(stage)

        asyncio.run(main())
        return script

    return run
