"""Taking in an answer while it is generated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kvnotes_local.chat_format.format import ChatFormat
from kvnotes_local.chat_format.reasoning import split_reasoning
from kvnotes_local.contract.generation import Generation, StopReason

OnText = Callable[[str], None]
"""Called with each piece of an answer as it is generated."""


class SaidText:
    """Takes in an answer piece by piece and hands on what the model says, not what it thinks before. ``think`` is called once,
    when it begins to think."""

    def __init__(self, chat_format: ChatFormat, say: OnText, think: Callable[[], None] = lambda: None) -> None:
        self._format = chat_format
        self._say = say
        self._think: Callable[[], None] | None = think
        self._text = ""
        self._n_said = 0

    def __call__(self, piece: str) -> None:
        self._text += piece
        spoken = split_reasoning(self._text, self._format)
        if spoken.thinking and self._think is not None:
            self._think()
            self._think = None
        if len(spoken.said) > self._n_said:
            n_before, self._n_said = self._n_said, len(spoken.said)
            self._say(spoken.said[n_before:])


@dataclass(frozen=True)
class Heard:
    """An answer's text, and when its first token came (``time.perf_counter``). ``failed``: what ended it before its time, to be
    raised once what was said is stored."""

    text: str
    first_token_at: float
    failed: BaseException | None = None


def listen(generation: Generation, stop_texts: tuple[str, ...], on_text: OnText | None) -> Heard:
    """Take in a generation to its end. A stop text ends it and is cut off; nothing that may begin one is shown early.

    An error, be it of the engine or of ``on_text`` (whoever read the answer may have gone), ends it as stopped.
    """
    text, shown = "", 0
    first: float | None = None
    failed: BaseException | None = None
    try:
        for event in generation:
            if first is None:
                first = time.perf_counter()
            text += event.text
            at = min((found for stop in stop_texts if (found := text.find(stop)) >= 0), default=-1)
            if at >= 0:
                text = text[:at]
                generation.close()
                generation.stop_reason = StopReason.END
                break
            safe = len(text) - _held_back(text, stop_texts)
            if on_text is not None and safe > shown:
                shown, piece = safe, text[shown:safe]
                on_text(piece)
        if on_text is not None and len(text) > shown:
            on_text(text[shown:])
    except BaseException as error:
        failed = error
        generation.close()
        generation.stop_reason = generation.stop_reason or StopReason.STOPPED
    return Heard(text, time.perf_counter() if first is None else first, failed)


def _held_back(text: str, stop_texts: tuple[str, ...]) -> int:
    """Characters at the end of ``text`` that may be the beginning of a stop text."""
    return max((n for stop in stop_texts for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), default=0)
