"""Turns of a chat as tokens: the pieces of the chat format with special tokens, texts without.

A text is tokenized together with its wrapper, since a vocabulary may merge characters across the seam; the tokens are those of
the template's whole rendering. Text can still not open a turn: ``<|im_start|>`` typed by a user stays eleven characters, because
it is broken in two before it is tokenized, wherever the vocabulary would take it for a marker. Markers that are no tokens at all,
such as ``[INST]`` in some vocabularies, can be imitated, but not the BOS between two turns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Protocol

from kvnotes_local.chat_format.format import ACKNOWLEDGMENT, SYSTEM_REQUEST, ChatFormat, Trim, Wrapper

MARKER = re.compile(r"<[^<>\s]{1,80}>|\[[^\[\]\s]{1,80}\]")
"""What a marker of a turn may look like."""


class Tokenize(Protocol):
    def __call__(self, text: str, *, special: bool = False) -> list[int]: ...


@dataclass(frozen=True)
class TurnPiece:
    """Text of a turn; ``field`` names the field whose value it is, None for plain text."""

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
    """Tokens of one turn. ``content_start … content_stop``: the part that is not wrapper; a token that holds the end of the one
    and the beginning of the other counts as content."""

    tokens: tuple[int, ...]
    content_start: int
    content_stop: int
    fields: tuple[FieldSpan, ...] = ()


Pieces = str | Sequence[TurnPiece]


class TurnTokenizer:
    """Makes turns for one model."""

    def __init__(self, chat_format: ChatFormat, tokenize: Tokenize) -> None:
        self.format = chat_format
        self._tokenize = tokenize
        self._alone = lru_cache(64)(self._alone_tokens)
        self._before = lru_cache(16)(self._before_tokens)
        self._is_marker = lru_cache(4096)(self._is_marker_text)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def beginning(self, system: Pieces | None, *, closed: bool = False) -> TurnTokens:
        """How a chat begins; ``system`` None: as the template does when no system text is given. ``closed``: something else
        than a question follows, so that a system text in the first question needs its ``closing``."""
        if system:
            turn = self._wrap(self.format.system, system, behind="")
            needs_closing = closed and self.format.system_opens_question
            return replace(turn, tokens=turn.tokens + self.closing()) if needs_closing else turn
        head = self._alone(self.format.head if system is None else self.format.empty_head, behind="")
        return TurnTokens(head, len(head), len(head))

    def user(self, pieces: Pieces, *, continues: bool = False) -> TurnTokens:
        """A user turn; ``continues``: the system text in front of it has opened it already."""
        wrapper = self.format.user
        if continues:
            wrapper = replace(wrapper, open=self.format.question_open, trim=self.format.question_trim)
            return self._wrap(wrapper, pieces, behind="")
        return self._wrap(wrapper, pieces, behind=self.format.assistant.close)

    def assistant(self, text: str) -> TurnTokens:
        """An answer that the model did not give here."""
        return self._wrap(self.format.assistant, text, behind=self.format.user.close)

    def skill(self, pieces: Pieces) -> TurnTokens:
        """A turn that holds a skill or an erratum."""
        return self._wrap(self.format.skill, pieces, behind=self.format.assistant.close)

    def closing(self) -> tuple[int, ...]:
        """What closes a system text that stands in the first question, where something else than that question follows."""
        user, assistant = self.format.user, self.format.assistant
        text = SYSTEM_REQUEST + user.close + assistant.open + ACKNOWLEDGMENT + assistant.close
        return self._alone(text, behind="")

    def generation_open(self) -> tuple[int, ...]:
        """What makes the model answer."""
        return self._alone(self.format.generation_open, behind=self.format.user.close)

    def user_open(self) -> tuple[int, ...]:
        return self._alone(self.format.user.open, behind=self.format.assistant.close)

    def assistant_open(self) -> tuple[int, ...]:
        return self._alone(self.format.assistant.open, behind=self.format.user.close)

    def assistant_close(self) -> tuple[int, ...]:
        return self._alone(self.format.assistant.close, behind="")

    # -- texts ---------------------------------------------------------------------------------------------------------

    def text(self, text: str) -> list[int]:
        """Tokens of a text by itself, none of which opens or closes a turn."""
        return [token for fragment in self._fragments(text) for token in self._tokenize(fragment)]

    def _wrap(self, wrapper: Wrapper, pieces: Pieces, *, behind: str) -> TurnTokens:
        """One turn. The value of a field is tokenized by itself, so that its tokens are exactly known; text beside the wrapper
        together with it."""
        runs = _trimmed([TurnPiece(pieces)] if isinstance(pieces, str) else list(pieces), wrapper.trim)
        opening, closing = wrapper.open, wrapper.close
        tokens: list[int] = []
        fields: list[FieldSpan] = []
        if not runs or runs[0].field is not None:
            tokens, opening = list(self._alone(opening, behind=behind)), ""
        for number, run in enumerate(runs):
            first = len(tokens)
            if run.field is not None:
                tokens.extend(self.text(run.text))
                fields.append(FieldSpan(run.field, run.text, first, len(tokens)))
                continue
            fragments = self._fragments(run.text)
            if number == len(runs) - 1:
                fragments[-1] += closing
                closing = ""
            # No fragment holds a whole marker, so special tokens are those of the wrapper.
            tokens.extend(self._piece(opening + fragments[0], behind if opening else ""))
            tokens.extend(token for fragment in fragments[1:] for token in self._piece(fragment))
            opening = ""
        tokens.extend(self._piece(closing))
        start = _common(self._alone(wrapper.open, behind=behind), tokens)
        stop = len(tokens) - _common(self._alone(wrapper.close, behind="")[::-1], tokens[start:][::-1])
        return TurnTokens(tuple(tokens), start, stop, tuple(fields))

    def _piece(self, text: str, behind: str = "") -> list[int]:
        """Tokens of a piece of the format that stands behind another. Text behind a special token may have other tokens than
        elsewhere (SentencePiece's blank; llama.cpp, src/llama-vocab.cpp, ``is_prev_special``)."""
        if text and behind:
            before, both = self._before(behind), self._tokenize(behind + text, special=True)
            if tuple(both[: len(before)]) == before:
                return both[len(before) :]
        return self._tokenize(text, special=True)

    def _before_tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenize(text, special=True))

    def _alone_tokens(self, text: str, *, behind: str) -> tuple[int, ...]:
        return tuple(self._piece(text, behind))

    def _fragments(self, text: str) -> list[str]:
        """The text, broken in two inside everything that the vocabulary would take for a marker of a turn."""
        fragments = [text]
        for marker in sorted(filter(self._is_marker, {*MARKER.findall(text), *self._marker_texts})):
            if marker in text:
                halves = re.compile(f"(?<={re.escape(marker[0])})(?={re.escape(marker[1:])})")
                fragments = [half for fragment in fragments for half in halves.split(fragment)]
        return [half for fragment in fragments for half in self._without_special(fragment)]

    def _is_marker_text(self, text: str) -> bool:
        """Is this a special token, or one of the format that is "user-defined", which is a token in any text (llama.cpp,
        src/llama-vocab.cpp, ``tokenizer_st_partition``)?"""
        tokens = self._tokenize(text, special=True)
        return len(tokens) == 1 and (tokens != self._tokenize(text) or text in self._marker_texts)

    def _without_special(self, text: str) -> list[str]:
        """The text, broken in two inside each special token that it spells."""
        fragments = []
        while (stop := self._end_of_special(text)) is not None:
            back = _first(range(1, stop + 1), partial(self._special_at, text, stop))
            if back < 2:
                break  # a marker of one character cannot be broken
            cut = stop - back + 1
            fragments.append(text[:cut])
            text = text[cut:]
        return [*fragments, text]

    def _end_of_special(self, text: str) -> int | None:
        """Where the first special token that a text spells ends; None where there is none."""
        if not self._spells_special(text):
            return None
        return _first(range(1, len(text) + 1), lambda n: self._spells_special(text[:n]))

    def _special_at(self, text: str, stop: int, n: int) -> bool:
        """Do the ``n`` characters before ``stop`` spell a special token?"""
        return self._spells_special(text[stop - n : stop])

    def _spells_special(self, text: str) -> bool:
        return self._tokenize(text, special=True) != self._tokenize(text)

    @cached_property
    def _marker_texts(self) -> frozenset[str]:
        """What looks like a marker in the pieces of the format."""
        pieces = self.format
        wrappers = (pieces.system, pieces.user, pieces.assistant, pieces.skill)
        texts = [pieces.head, pieces.generation_open, *pieces.end_markers]
        texts += [text for one in wrappers for text in (one.open, one.close)]
        if pieces.reasoning is not None:
            texts += [pieces.reasoning.open, pieces.reasoning.close]
        return frozenset(marker for text in texts for marker in MARKER.findall(text))


def _trimmed(runs: list[TurnPiece], trim: Trim) -> list[TurnPiece]:
    """Pieces as the template trims the whole; values of fields stay as they are."""
    if trim is Trim.NONE or not runs:
        return runs
    body = "\0"  # no white space: trims only one side
    if runs[0].field is None and len(runs) > 1:
        runs[0] = replace(runs[0], text=trim(runs[0].text + body)[: -len(body)])
    if runs[-1].field is None:
        text = trim(body + runs[-1].text)[len(body) :] if len(runs) > 1 else trim(runs[-1].text)
        runs[-1] = replace(runs[-1], text=text)
    return runs


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    shorter = min(len(left), len(right))
    return next((i for i in range(shorter) if left[i] != right[i]), shorter)


class _Test(Protocol):
    def __call__(self, n: int, /) -> bool: ...


def _first(numbers: range, holds: _Test) -> int:
    """The smallest number for which ``holds``, which then holds for all larger ones."""
    low, high = numbers.start, numbers.stop - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
