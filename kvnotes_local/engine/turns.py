"""Turns of a chat as tokens: the pieces of the chat format tokenized with special tokens, texts without.

Text can therefore not open a turn: ``<|im_start|>`` typed by a user stays eleven characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvnotes_local.engine.chat_format import ChatFormat, Wrapper


class Tokenize(Protocol):
    def __call__(self, text: str, *, special: bool = False) -> list[int]: ...


@dataclass(frozen=True)
class TurnPiece:
    """Text that is tokenized as one run; ``field`` names the field whose value it is, None for plain text."""

    text: str
    field: str | None = None


@dataclass(frozen=True)
class FieldSpan:
    """Tokens ``start … stop`` (indices into its segment) are the value of a field."""

    name: str
    value: str
    start: int
    stop: int


@dataclass(frozen=True)
class TurnTokens:
    """Tokens of one turn. ``content_start … content_stop``: the part that is not wrapper."""

    tokens: tuple[int, ...]
    content_start: int
    content_stop: int
    fields: tuple[FieldSpan, ...] = ()


class TurnTokenizer:
    """Makes turns for one model."""

    def __init__(self, chat_format: ChatFormat, tokenize: Tokenize) -> None:
        self.format = chat_format
        self._tokenize = tokenize

    def begin(self) -> tuple[int, ...]:
        """What stands before the first turn (BOS, where the model wants it)."""
        return tuple(self._tokenize(self.format.begin, special=True))

    def wrap(self, wrapper: Wrapper, pieces: str | Sequence[TurnPiece]) -> TurnTokens:
        """One turn. Each piece is tokenized by itself, so that a field's tokens are exactly known."""
        runs = [TurnPiece(pieces)] if isinstance(pieces, str) else list(pieces)
        tokens = list(self._tokenize(wrapper.open, special=True))
        start = len(tokens)
        fields: list[FieldSpan] = []
        for run in runs:
            first = len(tokens)
            tokens.extend(self._tokenize(run.text))
            if run.field is not None:
                fields.append(FieldSpan(run.field, run.text, first, len(tokens)))
        stop = len(tokens)
        tokens.extend(self._tokenize(wrapper.close, special=True))
        return TurnTokens(tuple(tokens), start, stop, tuple(fields))

    def generation_open(self) -> tuple[int, ...]:
        """What makes the model answer."""
        return tuple(self._tokenize(self.format.generation_open, special=True))

    def assistant_close(self) -> tuple[int, ...]:
        return tuple(self._tokenize(self.format.assistant.close, special=True))
