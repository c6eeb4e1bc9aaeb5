"""Chats of every shape that the product can produce."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum


class Kind(Enum):
    """What a turn is. ANSWER: the model wrote it behind a generation prompt; ASSISTANT: it came from outside."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    ANSWER = "answer"
    SKILL = "skill"


@dataclass(frozen=True)
class Turn:
    """``reasoning``: what the model wrote before the answer, between the markers of the template."""

    kind: Kind
    text: str
    reasoning: str | None = None


@dataclass(frozen=True)
class Chat:
    """``name`` says what its shape is; ``generate``: the model is to answer next."""

    name: str
    turns: tuple[Turn, ...]
    generate: bool = True

    def with_edges(self, edge: str) -> Chat:
        """The same chat with texts that begin and end with ``edge``."""
        return replace(self, name=f"{self.name}, texts between {edge!r}").with_texts(lambda text: edge + text + edge)

    def with_texts(self, change: Callable[[str], str]) -> Chat:
        """The same chat with other texts; those behind thoughts stay, since white space there belongs to the thoughts."""
        turns = tuple(turn if turn.reasoning else replace(turn, text=change(turn.text)) for turn in self.turns)
        return replace(self, turns=turns)


_LETTERS = {"s": Kind.SYSTEM, "u": Kind.USER, "a": Kind.ASSISTANT, "w": Kind.ANSWER, "k": Kind.SKILL, "t": Kind.ANSWER}

SHAPES = {
    "user": "u",
    "system, user": "su",
    "three turns": "uau",
    "five turns": "uauau",
    "system, five turns": "suauau",
    "a skill mid-chat": "uaku",
    "system, a skill mid-chat": "suaku",
    "system, a skill first": "sku",
    "two skills mid-chat": "suakku",
    "an answer of the model": "uwu",
    "system, answers of the model": "suwuwu",
    "a skill behind an answer": "uwku",
    "an answer with reasoning": "utu",
    "system, an answer with reasoning": "sutuwu",
}
"""System, user, assistant, skill, written answer, answer with thoughts."""

EDGES = (" ", "\n", "7", "汉", "🙂", "\r\n", " \n7")
"""What texts begin and end with, so that tokens that would merge across a seam show."""


def chat(name: str, letters: str) -> Chat:
    """A chat whose texts are words that no template holds, each another."""
    counts: dict[str, int] = {}
    turns = []
    for letter in letters:
        counts[letter] = counts.get(letter, 0) + 1
        word = f"Q{letter}{'abcdef'[counts[letter] - 1]}zx kept"
        turns.append(
            Turn(
                _LETTERS[letter], word, f"R{letter}{'abcdef'[counts[letter] - 1]}zx thought" if letter == "t" else None
            )
        )
    return Chat(name, tuple(turns))


PLAIN_CHATS = tuple(chat(name, letters) for name, letters in SHAPES.items())
ALL_CHATS = PLAIN_CHATS + tuple(
    one.with_edges(edge)
    for one in PLAIN_CHATS
    if one.name in ("system, five turns", "system, a skill mid-chat", "system, answers of the model")
    for edge in EDGES
)
