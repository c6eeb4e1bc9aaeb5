"""Telling what a model thinks from what it says, while it is still speaking."""

from __future__ import annotations

from dataclasses import dataclass

from kvnotes_local.chat_format.format import REASONING_CLOSE, REASONING_OPEN, ChatFormat


@dataclass(frozen=True)
class Spoken:
    """``thinking``: the reasoning has not ended yet."""

    reasoning: str
    said: str
    thinking: bool


def split_reasoning(text: str, *, opened: bool) -> Spoken:
    """``text`` as far as it has come; ``opened``: the model's own format has opened the reasoning already."""
    start = text.lstrip()
    if not opened and not start.startswith(REASONING_OPEN):
        # A beginning of the marker may still become one.
        return Spoken("", "" if start and REASONING_OPEN.startswith(start) else text, thinking=False)
    reasoning, closed, said = start.removeprefix(REASONING_OPEN).partition(REASONING_CLOSE)
    return Spoken(reasoning.strip(), said.lstrip(), thinking=not closed)


def opens_reasoning(chat_format: ChatFormat) -> bool:
    """Does the format itself open the reasoning of each answer?"""
    return chat_format.generation_open.rstrip().endswith(REASONING_OPEN)
