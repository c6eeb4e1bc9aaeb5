"""An answer that survives the death of the engine process: it goes on from the last whole character."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from kvnotes_local.contract.generation import Generation, Sampling, StopReason, TokenEvent
from kvnotes_local.errors import EngineLost
from kvnotes_local.notebook.chat_cache import ChatCache
from kvnotes_local.notebook.segment import Segment


class Answering:
    """A generation behind ``segments``, whose last token's logits are there.

    Where the engine process dies, the chat is put together again and the answer goes on; the second time it ends as stopped, and
    ``failed`` says why. So does one with a grammar, which could not go on in the middle.
    """

    def __init__(self, cache: ChatCache, segments: Sequence[Segment], sampling: Sampling, max_tokens: int) -> None:
        self.failed: EngineLost | None = None
        self.generation = Generation()
        self.generation.events = self._events(max_tokens)
        self._cache = cache
        self._segments = segments
        self._sampling = sampling
        self._whole_characters = 0  # tokens up to the last one that completed a character

    def _events(self, max_tokens: int) -> Generator[TokenEvent, None, None]:
        try:
            try:
                yield from self._part(max_tokens)
            except EngineLost as error:
                tokens = self.generation.tokens
                del tokens[self._whole_characters :]
                if tokens and self._sampling.grammar:
                    raise
                self._cache.put_together_again(self._segments, tokens, error)
                yield from self._part(max_tokens - len(tokens))
        except EngineLost as error:
            self.failed = error
            self.generation.stop_reason = StopReason.STOPPED

    def _part(self, max_tokens: int) -> Generator[TokenEvent, None, None]:
        whole = self.generation
        before, seconds = len(whole.tokens), whole.seconds
        part = self._cache.engine.generate(self._cache.seq, self._sampling, max_tokens)
        try:
            for event in part:
                whole.tokens.extend(part.tokens[len(whole.tokens) - before :])
                if event.text:
                    self._whole_characters = len(whole.tokens)
                yield event
        finally:
            part.close()
            whole.n_cached, whole.seconds = before + part.n_cached, seconds + part.seconds
            whole.stop_reason, whole.end_token = part.stop_reason, part.end_token
