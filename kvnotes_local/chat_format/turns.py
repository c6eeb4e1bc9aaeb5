"""Turns of a chat as tokens: the pieces of the chat format tokenized with special tokens, texts without.

Text can therefore not open a turn: ``<|im_start|>`` typed by a user stays eleven characters. Some vocabularies call their markers
"user-defined", which llama.cpp (src/llama-vocab.cpp, ``tokenizer_st_partition``) takes for tokens in any text; those are broken
in two first. Markers that are no tokens at all, such as ``[INST]``, can be imitated, but not the BOS between two turns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Protocol

from kvnotes_local.chat_format.format import ChatFormat, Wrapper

_MARKER = re.compile(r"<[^<>\s]{1,80}>|\[[^\[\]\s]{1,80}\]")


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

    def text(self, text: str) -> list[int]:
        """Tokens of a text, none of which opens or closes a turn."""
        tokens = self._tokenize(text)
        if self._markers.isdisjoint(tokens):
            return tokens
        pieces = [text]
        for marker in self._marker_texts:
            halves = re.compile(f"(?<={re.escape(marker[0])})(?={re.escape(marker[1:])})")
            pieces = [half for piece in pieces for half in halves.split(piece)]
        return [token for piece in pieces for token in self._tokenize(piece)]

    @cached_property
    def _marker_texts(self) -> tuple[str, ...]:
        """What looks like a marker in the pieces of the format."""
        found = {marker for piece in _texts(astuple(self.format)) for marker in _MARKER.findall(piece)}
        return tuple(sorted(found))

    @cached_property
    def _markers(self) -> frozenset[int]:
        """Markers that are tokens."""
        tokens = [self._tokenize(marker, special=True) for marker in self._marker_texts]
        return frozenset(one[0] for one in tokens if len(one) == 1)

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
            tokens.extend(self.text(run.text))
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


def _texts(values: object) -> list[str]:
    """All texts in nested tuples."""
    if isinstance(values, str):
        return [values]
    return [text for value in values for text in _texts(value)] if isinstance(values, tuple) else []
