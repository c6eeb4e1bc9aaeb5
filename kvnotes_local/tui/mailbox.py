"""From worker threads to the screens: reports are joined where they can be and handed over at a bounded rate."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

from kvnotes_local.tui.news import AnswerText, News, WorkProgressed, WorkStep

UPDATES_PER_SECOND = 30


class Mailbox:
    """Collects reports from any thread and hands them to the event loop, at most ``rate`` times a second.

    The first report after a pause is handed over at once; order is kept. Pieces of text that follow one another become one,
    and of progress that follows progress only the last is told.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[Sequence[News]], None],
        *,
        rate: float = UPDATES_PER_SECOND,
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._interval = 1.0 / rate
        self._lock = threading.Lock()
        self._waiting: list[News] = []
        self._scheduled = False
        self._next_at = 0.0

    def put(self, news: News) -> None:
        """Report something, from any thread. After the loop has ended nothing is told any more."""
        with self._lock:
            joined = _joined(self._waiting[-1], news) if self._waiting else None
            if joined is not None:
                self._waiting[-1] = joined
            else:
                self._waiting.append(news)
            if self._scheduled or self._loop.is_closed():
                return
            self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._schedule)
        except RuntimeError:
            return  # the loop was closed just now: nobody is left to tell

    def _schedule(self) -> None:
        self._loop.call_later(max(0.0, self._next_at - time.monotonic()), self._hand_over)

    def _hand_over(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, []
            self._scheduled = False
        self._next_at = time.monotonic() + self._interval
        self._deliver(batch)


def _joined(before: News, news: News) -> News | None:
    """One report that says what both say; None where they are different things."""
    if isinstance(before, AnswerText) and isinstance(news, AnswerText):
        return AnswerText(before.text + news.text)
    if isinstance(before, WorkProgressed) and isinstance(news, WorkProgressed):
        return news
    if isinstance(before, WorkStep) and isinstance(news, WorkStep):
        return news
    return None
