"""Pictures of screens, compared with those that are kept beside the tests."""

from __future__ import annotations

import gzip
import os
import re
from dataclasses import dataclass
from pathlib import Path

from textual.widgets import Input

from tests.tui.stage import Stage

DIRECTORY = Path(__file__).parent / "snapshots"
UPDATE = "KVNOTES_UPDATE_SNAPSHOTS"


@dataclass
class Album:
    """Snapshots of one terminal size. ``shot`` compares a screen with the kept one, or keeps it when $KVNOTES_UPDATE_SNAPSHOTS
    is set. Differences are collected, so that one run shows all of them."""

    size: tuple[int, int]
    found: Path
    n_shots: int = 0

    def __post_init__(self) -> None:
        self.differences: list[str] = []

    async def shot(self, stage: Stage, name: str) -> None:
        """Once nothing moves any more."""
        for field in stage.app.screen.query(Input):
            field.cursor_blink = False
        before, picture = "", await self._picture(stage)
        while picture != before:
            before, picture = picture, await self._picture(stage)
        kept = DIRECTORY / f"{name}-{self.size[0]}x{self.size[1]}.svg.gz"
        self.n_shots += 1
        if os.environ.get(UPDATE):
            DIRECTORY.mkdir(exist_ok=True)
            kept.write_bytes(gzip.compress(picture.encode(), mtime=0))
            return
        expected = gzip.decompress(kept.read_bytes()).decode() if kept.exists() else ""
        if picture != expected:
            seen = self.found / kept.name.removesuffix(".gz")
            seen.write_text(picture)
            lines = zip(words(expected), words(picture), strict=False)
            first = next((f"{a!r} is now {b!r}" for a, b in lines if a != b), "only styles or lengths differ")
            self.differences.append(f"{name}: {first} (see {seen}; {UPDATE}=1 keeps it)")

    async def _picture(self, stage: Stage) -> str:
        await stage.pilot.pause()
        await stage.pilot.pause(0.03)  # more than Textual takes its time to draw what has changed
        return normalised(stage.app.export_screenshot())


def normalised(svg: str) -> str:
    """Without what does not come from the app: fonts, and the id that the picture is given."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"terminal-\d+", "terminal", svg)


def words(svg: str) -> list[str]:
    """The texts of a picture, in order."""
    return [text.replace("&#160;", " ") for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]
