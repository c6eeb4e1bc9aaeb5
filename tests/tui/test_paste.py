"""What is pasted may be wide and long: it arrives whole, is shown within the screen, and is stored as it was."""

from __future__ import annotations

import pytest
from textual import events

from tests.tui.conftest import Play
from tests.tui.stage import Stage

WIDE = "".join(f"{column:03}|" for column in range(75))  # 300 columns
PASTES = {
    "one line of 300 columns": WIDE,
    "2,000 lines of 300 columns": "\n".join(f"{number:04} {WIDE}" for number in range(2000)),
    "one word of 20,000 letters": "x" * 20_000,
    "wide letters": "漢字" * 400,
}


@pytest.mark.parametrize("name", PASTES)
@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
def test_a_wide_and_long_paste_arrives_whole_and_stays_on_the_screen(
    play: Play, name: str, size: tuple[int, int]
) -> None:
    text = PASTES[name]

    async def scene(stage: Stage) -> None:
        stage.app.post_message(events.Paste(text))
        await stage.until(lambda: stage.composer.text == text)
        for picture in (stage.text, await sent(stage)):
            lines = picture.splitlines()
            assert len(lines) <= size[1]
            assert max(map(len, lines)) <= size[0]
        asked = stage.app.session.chat
        assert asked is not None
        assert text in [segment.text for segment in asked.segments]

    play(scene, size=size)


async def sent(stage: Stage) -> str:
    await stage.pilot.press("enter")
    await stage.idle()
    assert stage.composer.text == ""
    return stage.text
