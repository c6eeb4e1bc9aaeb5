"""Parts of the screens that need no screen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvnotes_local.chat_format.reasoning import split_reasoning
from kvnotes_local.evaluation.bench_row import BenchRow, SpliceStages
from kvnotes_local.notebook.segment import Freshness, Run
from kvnotes_local.tui.freshness import LOOKS, cells, count_tokens
from kvnotes_local.tui.mailbox import Mailbox
from kvnotes_local.tui.news import AnswerText, News, Notice, WorkProgressed
from kvnotes_local.tui.plots import bench_plot
from kvnotes_local.tui.themes import DAY, NIGHT
from tests.tui.fake_engine import FORMAT

N_PIECES = 3000
KINDS = ("skill read", "from disk", "spliced", "in place")

STAGES = SpliceStages(1, 2, 3, 4, 5, 6, 7)


def test_reports_from_a_thread_are_joined_kept_in_order_and_bounded_in_rate() -> None:
    async def main() -> tuple[list[Sequence[News]], float]:
        loop = asyncio.get_running_loop()
        batches: list[Sequence[News]] = []
        done = asyncio.Event()

        def deliver(batch: Sequence[News]) -> None:
            batches.append(batch)
            if any(isinstance(one, Notice) for one in batch):
                done.set()

        mailbox = Mailbox(loop, deliver)

        def speak() -> None:
            for n in range(N_PIECES):
                mailbox.put(AnswerText(f"{n},"))
            mailbox.put(WorkProgressed(1, 3))
            mailbox.put(WorkProgressed(2, 3))
            mailbox.put(Notice("end"))

        began = loop.time()
        threading.Thread(target=speak).start()
        await asyncio.wait_for(done.wait(), 30)
        return batches, loop.time() - began

    batches, seconds = asyncio.run(main())
    news = [one for batch in batches for one in batch]
    assert "".join(one.text for one in news if isinstance(one, AnswerText)) == "".join(f"{n}," for n in range(N_PIECES))
    assert [one.done for one in news if isinstance(one, WorkProgressed)][-1] == 2
    assert isinstance(news[-1], Notice)
    assert len(batches) <= 30 * seconds + 2


def test_reports_after_the_loop_has_ended_are_dropped() -> None:
    loop = asyncio.new_event_loop()
    mailbox = Mailbox(loop, lambda batch: None)
    loop.close()
    mailbox.put(Notice("nobody hears this"))


def test_the_strip_has_a_cell_for_everything_and_hides_no_edit() -> None:
    runs = [Run(500, Freshness.SPLICED), Run(2, Freshness.EDITED), Run(700, Freshness.STALE), Run(1, Freshness.FRESH)]
    shown, per_cell = cells(runs, 80)
    assert per_cell == 16
    assert len(shown) == -(-1203 // 16)
    assert shown[31] is Freshness.EDITED
    assert shown[0] is Freshness.SPLICED
    assert shown[-2] is Freshness.STALE
    assert cells([], 80) == ([], 1)
    assert count_tokens(runs)[Freshness.STALE] == 700


def test_signs_of_freshness_differ_without_colour() -> None:
    assert set(LOOKS) == set(Freshness)
    assert len({look.sign for look in LOOKS.values()}) == len(LOOKS)


@pytest.mark.parametrize("theme", [NIGHT, DAY], ids=lambda theme: theme.name)
def test_our_themes_have_good_contrast(theme: object) -> None:
    def luminance(colour: str) -> float:
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    ground = luminance(theme.background)  # type: ignore[attr-defined]
    for name in ("foreground", "primary", "accent", "success", "warning", "error"):
        text = luminance(getattr(theme, name))
        ratio = (max(text, ground) + 0.05) / (min(text, ground) + 0.05)
        assert ratio >= 7, f"{name}: {ratio:.1f}"


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("Hello", False, ("", "Hello", False)),
        ("<thi", False, ("", "", False)),
        ("<think>Let me", False, ("Let me", "", True)),
        ("<think>Let me</think>\n\nHi", False, ("Let me", "Hi", False)),
        ("Let me", True, ("Let me", "", True)),
        ("Let me</think>Hi", True, ("Let me", "Hi", False)),
        ("1 < 2", False, ("", "1 < 2", False)),
    ],
)
def test_reasoning_is_told_from_what_is_said(text: str, opened: bool, expected: tuple[str, str, bool]) -> None:
    prompt = FORMAT.generation_open + ("<think>\n" if opened else "")
    spoken = split_reasoning(text, replace(FORMAT, generation_open=prompt))
    assert (spoken.reasoning, spoken.said, spoken.thinking) == expected


def test_no_line_of_a_plot_is_wider_than_the_screen_even_where_splicing_is_slower() -> None:
    rows = [
        BenchRow(n, 200, 8, 3, 900.0, 40.0, 40.0, 3.0, 99_999.0, 99_999.0, 0.1, {}, 3, 0.1, 2, 6, STAGES, 0.01)
        for n in (64, 99_999)
    ]
    for width in (80, 120, 200):
        plot = bench_plot("Tiny", rows, width).plain
        bars = [line for line in plot.splitlines() if any(kind in line for kind in KINDS)]
        assert len(bars) == 8
        assert max(map(len, bars)) <= width - 4  # the padding of the screen
        assert "0.1× as fast as reading" in plot
