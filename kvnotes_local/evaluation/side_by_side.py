"""One question, answered twice in the same run: with the skill spliced, and with the skill read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from kvnotes_local.contract.generation import Sampling
from kvnotes_local.contract.plan import Decode, Keep
from kvnotes_local.contract.protocol import Engine
from kvnotes_local.evaluation.logits import cosine
from kvnotes_local.notebook.reply import Reply


@dataclass(frozen=True)
class Side:
    """One of the two answers, and how it came about. Tokens; milliseconds to the first token."""

    prefilled: int
    spliced: int
    repaired: int
    ttft_ms: float
    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class SideBySide:
    """Two answers to one question.

    ``cosine``: between the logits before the first token. ``first_difference``: index of the first token in which the
    answers differ, None where the first ``n_compared`` agree. ``speedup``: of the time to the first token.
    """

    splice: Side
    recompute: Side
    cosine: float
    first_difference: int | None
    n_compared: int

    @property
    def speedup(self) -> float:
        return self.recompute.ttft_ms / self.splice.ttft_ms


def compare_with_recompute(
    engine: Engine, tokens: Sequence[int], n_before: int, n_question_end: int, reply: Reply
) -> SideBySide:
    """Answer again, reading everything behind the first ``n_before`` tokens, and compare with ``reply``.

    ``tokens``: of the whole chat; ``n_question_end``: where the answer begins. ``reply`` must have been asked for with
    ``keep_logits``. Both sides keep the chat that stood before the skill: what is compared is splicing against reading it.
    """
    assert reply.first_logits is not None
    answer = tuple(tokens[n_question_end : n_question_end + reply.proof.generated])
    seq = engine.new_sequence()
    try:
        engine.apply(seq, [Decode(tuple(tokens[:n_before]))], logits=False)
        began = time.perf_counter()
        applied = engine.apply(seq, [Keep(0, n_before), Decode(tuple(tokens[n_before:n_question_end]))])
        logits = engine.logits(seq)
        generation = engine.generate(seq, Sampling(), max(1, len(answer)))
        ttft, text = 0.0, ""
        for event in generation:
            ttft = ttft or time.perf_counter() - began
            text += event.text
    finally:
        engine.free_sequence(seq)
    again = tuple(generation.tokens)
    proof = reply.proof
    return SideBySide(
        splice=Side(
            proof.prefilled, proof.spliced, proof.repaired, proof.change_ms + proof.ttft_ms, answer, reply.text
        ),
        recompute=Side(applied.decoded, 0, 0, ttft * 1e3, again, text),
        cosine=cosine(reply.first_logits, logits),
        first_difference=first_difference(answer, again),
        n_compared=min(len(answer), len(again)),
    )


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first difference; None where the shorter one is the beginning of the longer."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
