"""Running the app without a terminal, with a scripted engine."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from textual.message import Message
from textual.pilot import Pilot

from kvnotes_local.session.places import Places
from kvnotes_local.tui.app import KvnotesApp
from kvnotes_local.tui.news import News, WorkEnded
from kvnotes_local.tui.start import Start
from kvnotes_local.tui.widgets.composer import Composer
from tests.skills.skill_samples import write_skill
from tests.tui.fake_engine import PATIENCE, Script

N = TypeVar("N", bound=Message)

POLICY = "The refund window is {{refund window|30 days}}. " + "Ask for the receipt, be polite, and write it down. " * 20
MODEL = Path("/models/Tiny-1B.gguf")


@dataclass
class Stage:
    """A running app. ``messages``: every message that came anywhere in it, in order."""

    app: KvnotesApp
    pilot: Pilot[None]
    script: Script
    messages: list[Message] = field(default_factory=list)

    def heard(self, kind: type[N]) -> list[N]:
        """Messages of a kind, each once."""
        return list({id(one): one for one in self.messages if isinstance(one, kind)}.values())

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the app work until this holds."""
        give_up = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < give_up, f"It never happened; the last news: {self.heard(News)[-5:]}"
            await self.pilot.pause(0.01)
        await self.pilot.pause()

    async def idle(self) -> None:
        """Let the workbench do everything that was asked for."""
        await self.pilot.pause()
        await self.until(
            lambda: {one.id for one in self.heard(WorkEnded)} >= set(range(1, self.app.workbench.n_submitted + 1))
        )
        await self.pilot.pause()

    async def write(self, text: str) -> None:
        """Put a text into the composer and send it, without waiting for what becomes of it."""
        self.composer.write(text)
        await self.pilot.pause()
        self.composer.hide_completions()
        await self.pilot.press("enter")

    async def say(self, text: str) -> None:
        """Send a text and let the workbench finish."""
        await self.write(text)
        await self.idle()

    @property
    def composer(self) -> Composer:
        return self.app.screen.query_one(Composer)

    @property
    def text(self) -> str:
        """What the screen shows, as lines of text; what waits for the next picture is drawn before."""
        self.app.screen._on_timer_update()
        return "\n".join(
            "".join(segment.text for segment in line) for line in self.app.screen._compositor.render_strips()
        )


def places(home: Path) -> Places:
    """A home with two skills."""
    write_skill(
        home / "skills" / "refund-policy",
        "---\nname: refund-policy\ndescription: What to refund.\nmetadata:\n  kvnotes.repair: '8'\n---\n\n"
        + POLICY
        + "\n",
    )
    write_skill(
        home / "skills" / "night-clerk",
        "---\nname: night-clerk\ndescription: How to be a clerk.\n---\n\n" + "Be kind. " * 40,
    )
    return Places(home / "cache", home / "data", home / "config", home / "log", (home / "skills",), only_given=True)


def start(home: Path, script: Script, *, models: tuple[Path, ...] = (), **how: object) -> Start:
    """``models``: files that are found besides the embedded one; ``how``: fields of Start."""
    return replace(Start(replace(places(home), models=models), script.open_engine, model=MODEL), **how)  # type: ignore[arg-type]


@asynccontextmanager
async def on_stage(
    begin: Start, script: Script, *, size: tuple[int, int] = (120, 40), ready: bool = True
) -> AsyncIterator[Stage]:
    """Run the app; ``ready``: wait until it has loaded what it was started with."""
    app = KvnotesApp(begin)
    messages: list[Message] = []
    async with app.run_test(size=size, message_hook=messages.append) as pilot:
        stage = Stage(app, pilot, script, messages)
        stage.composer.area.cursor_blink = False
        app.animation_level = "none"
        if ready:
            await stage.idle()
        yield stage
        if app.is_running:
            await app.leave()
