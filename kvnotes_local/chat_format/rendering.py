"""Chats as a model's template writes them, each rendered once, and as the vocabulary's tokens."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property

from kvnotes_local.chat_format.format import COMPILE_DATE
from kvnotes_local.chat_format.sandbox import Message, TemplateError, TemplateRenderer
from kvnotes_local.chat_format.turns import MARKER, Tokenize

SYSTEM, USER, ANSWER, USER2, THOUGHT = (f"@@{name}@@" for name in ("SYSTEM", "USERONE", "ANSWER", "USERTWO", "THOUGHT"))
"""Contents that are found again in a rendering."""


class CutError(ValueError):
    """A template does not put turns one after the other; the message says what was seen."""


class ChatRendering:
    """Renders chats. ``bos``: what the template may print for BOS; ``adds_bos``: the vocabulary wants one in front, so it is
    put there where the template writes none."""

    def __init__(self, renderer: TemplateRenderer, tokenize: Tokenize, *, bos: str, adds_bos: bool) -> None:
        self.renderer = renderer
        self._tokenize = tokenize
        self._bos = bos if adds_bos else ""
        self._known: dict[object, str | TemplateError] = {}

    def __call__(self, *messages: Message, generate: bool = False, now: datetime = COMPILE_DATE) -> str:
        """The whole chat as text. Raises TemplateError where the template refuses it."""
        key = (messages, generate, now)
        if key not in self._known:
            try:
                text = self.renderer.render(messages, add_generation_prompt=generate, now=now)
                head = text.partition(messages[0].content or USER)[0]
                self._known[key] = text if self._bos in head else self._bos + text
            except TemplateError as error:
                self._known[key] = error
        known = self._known[key]
        if isinstance(known, TemplateError):
            raise known
        return known

    @cached_property
    def behind_question(self) -> str:
        """What stands behind a question that is to be answered: the end of the turn and the prompt for the answer. Raises
        TemplateError, CutError."""
        return between(self(Message("user", USER), generate=True), USER)[1]

    def accepts(self, *messages: Message) -> bool:
        """Does the template render these messages?"""
        try:
            self(*messages)
        except TemplateError:
            return False
        return True

    def tokens(self, text: str) -> list[int]:
        """Tokens of a rendering, special ones included."""
        return self._tokenize(text, special=True)

    # -- looking at renderings -----------------------------------------------------------------------------------------

    def cuts(self, text: str) -> list[int]:
        """Places (characters) where a text can be cut without changing its tokens."""
        whole = self.tokens(text)
        return [n for n in range(len(text) + 1) if self.tokens(text[:n]) + self.tokens(text[n:]) == whole]

    def shared_opening(self, *texts: str) -> int:
        """Length (characters) of the longest beginning that all texts share and that ends between tokens in each."""
        same = min(map(len, texts))
        same = next((n for n in range(same) if len({text[n] for text in texts}) > 1), same)
        places = set.intersection(*(set(self.cuts(text)) for text in texts))
        return max((n for n in places if n <= same), default=0)

    def first_special(self, text: str) -> str:
        """The special token that a text opens with, behind white space; "" for none."""
        text = text.lstrip()
        for n in range(1, len(text) + 1):
            parsed = self.tokens(text[:n])
            # "User-defined" markers are tokens in any text.
            if len(parsed) == 1 and (parsed != self._tokenize(text[:n]) or MARKER.fullmatch(text[:n])):
                return text[:n]
        return ""

    def has_special(self, text: str) -> bool:
        return any(self.first_special(text[n:]) for n in range(len(text)))

    def is_one_token(self, text: str) -> bool:
        return len(self.tokens(text)) == 1


def between(text: str, *contents: str) -> list[str]:
    """What stands before, between and behind contents in a rendering. Raises CutError unless each is there once, in order."""
    parts = []
    for content in contents:
        if text.count(content) != 1:
            raise CutError(f"the chat template does not show a message's content once ({content!r})")
        before, _, text = text.partition(content)
        parts.append(before)
    return [*parts, text]
