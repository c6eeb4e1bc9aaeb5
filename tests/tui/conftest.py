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
