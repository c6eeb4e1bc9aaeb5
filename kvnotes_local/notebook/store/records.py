"""What is known of stored chats, and how they belong together."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvnotes_local.notebook.segment import Segment
from kvnotes_local.notebook.store.params import ChatParams

LAST_MOMENT = 253402300800.0
"""The year 10000, in seconds since the epoch: no calendar goes further."""


@dataclass(frozen=True)
class ChatSummary:
    """A chat without its text. Times in seconds since the epoch. ``parent``: the chat that it was forked from, after
    ``parent_segments`` segments."""

    id: str
    title: str
    created: float
    updated: float
    model_name: str
    model_fingerprint: str
    parent: str | None
    parent_segments: int
    n_segments: int
    n_tokens: int


@dataclass(frozen=True)
class Chat:
    """A stored chat with its segments and parameters. ``last_operation``: number of the last change of it."""

    summary: ChatSummary
    segments: tuple[Segment, ...]
    params: ChatParams
    last_operation: int


@dataclass(frozen=True)
class RemovedChat:
    """All that was stored of a chat when it was removed: ``rows`` by table, each by column."""

    summary: ChatSummary
    rows: Mapping[str, tuple[dict[str, object], ...]]


@dataclass(frozen=True)
class Found:
    """A place where a search found something; ``snippet`` has the words in […]."""

    chat: ChatSummary
    number: int
    snippet: str


def new_chat_id() -> str:
    """Eight letters and digits."""
    return secrets.token_hex(4)


def as_tree(chats: Sequence[ChatSummary]) -> list[tuple[ChatSummary, int]]:
    """The chats with their depth: each is followed by its forks; the order stays as given among siblings. All are there, also
    those of a damaged database that descend from themselves."""
    there = {chat.id for chat in chats}
    forks: dict[str | None, list[ChatSummary]] = {}
    for chat in chats:
        forks.setdefault(chat.parent if chat.parent in there else None, []).append(chat)
    rows: list[tuple[ChatSummary, int]] = []
    waiting = [(chat, 0) for chat in reversed(forks.get(None, []))]
    while waiting:
        chat, depth = waiting.pop()
        rows.append((chat, depth))
        waiting += [(fork, depth + 1) for fork in reversed(forks.get(chat.id, []))]
    shown = {chat.id for chat, _ in rows}
    return rows + [(chat, 0) for chat in chats if chat.id not in shown]


def summary_from_row(row: tuple[Any, ...]) -> ChatSummary:
    """A row as it should be. What is of a wrong type is shown as nothing, so that the other chats can be listed."""
    chat, title, created, updated, name, fingerprint, parent, *counts = row

    def text(value: object) -> str:
        return value if isinstance(value, str) else ""

    def moment(value: object) -> float:
        return float(value) if isinstance(value, (int, float)) and 0 <= value < LAST_MOMENT else 0.0

    def count(value: object) -> int:
        return value if isinstance(value, int) else 0

    return ChatSummary(
        text(chat),
        text(title),
        moment(created),
        moment(updated),
        text(name),
        text(fingerprint),
        text(parent) or None,
        *map(count, counts),
    )


def short_title(text: str) -> str:
    """A text as a title of one line."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"
