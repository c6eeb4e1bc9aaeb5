"""The loop that draws tokens one by one and hands them out as text."""

from __future__ import annotations

import codecs
import threading
import time
from collections.abc import Container, Generator

from kvnotes_local.contract.generation import Generation, Sampling, StopReason, TokenEvent
from kvnotes_local.engine.llama.checkpoints import end_where_known
from kvnotes_local.engine.llama.context import LlamaContext
from kvnotes_local.engine.llama.model import LlamaModel
from kvnotes_local.engine.llama.sampling import SamplerChain
from kvnotes_local.engine.sequences.pool import Sequences
from kvnotes_local.errors import Cancelled


def draw_tokens(
    generation: Generation,
    model: LlamaModel,
    context: LlamaContext,
    sequences: Sequences,
    seq: int,
    lock: threading.RLock,
    sampling: Sampling,
    max_tokens: int,
    ends: Container[int],
) -> Generator[TokenEvent, None, None]:
    """Draw up to ``max_tokens`` behind the last decoded token of sequence ``seq`` and keep account in ``generation``.

    ``ends``: tokens that end an answer beside those of the vocabulary. ``lock`` is held for each token, not between them, so
    that a slow reader of the text holds nobody up.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    began = time.perf_counter()
    context.abort.clear()
    try:
        with SamplerChain(context, sampling) as sampler:
            for number in range(max_tokens):
                with lock:
                    if number > 0:
                        _append(context, sequences, seq, generation.tokens[-1])
                        generation.n_cached = number
                    token = sampler.sample()
                if model.is_end(token) or token in ends:
                    generation.end_token = token
                    generation.stop_reason = StopReason.END
                    break
                generation.tokens.append(token)
                yield TokenEvent(token, decoder.decode(model.piece(token)))
                if context.abort.is_set():
                    generation.stop_reason = StopReason.STOPPED
                    break
            else:
                generation.stop_reason = StopReason.LENGTH
    except Cancelled:
        generation.stop_reason = StopReason.STOPPED
    except GeneratorExit:
        generation.stop_reason = StopReason.STOPPED
        raise
    finally:
        generation.seconds = time.perf_counter() - began
    rest = decoder.decode(b"", final=True)
    if rest:
        yield TokenEvent(generation.tokens[-1], rest)


def _append(context: LlamaContext, sequences: Sequences, seq: int, token: int) -> None:
    """Compute one more token of a sequence, with its logits."""
    with sequences.at_work(seq) as (state,):
        try:
            context.decode(state.id, [token], len(state.tokens), logits=True)
        except BaseException:
            end_where_known(context, state.id, state.tokens, state.checkpoints)
            raise
        state.tokens.append(token)
