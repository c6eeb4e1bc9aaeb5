"""A chat as it stands against the same chat read afresh: where would the answers have differed?

Two steps, so that the chat's own engine is busy for a moment only: ``live_answers`` lets it say what its rows predict along
each answer; ``check_chat`` then reads the chat in a spare engine, in the background if need be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.contract.plan import Decode, Keep
from kvnotes_local.contract.protocol import Engine
from kvnotes_local.errors import UsageError
from kvnotes_local.evaluation.fidelity import Step
from kvnotes_local.evaluation.logits import ComparedAnswers, compare_rows
from kvnotes_local.evaluation.recompute import segments_as_if_read
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.segment import Freshness, Kind, Segment


@dataclass(frozen=True, eq=False)
class LiveAnswer:
    """An answer of the chat. ``index``: of its segment; ``tokens``: its content; ``logits``: float32 (len(tokens), n_vocab),
    what the chat's rows predict for each of them."""

    index: int
    tokens: tuple[int, ...]
    logits: NDArray[np.float32]


@dataclass(frozen=True)
class Difference:
    """A place where reading afresh would have preferred another token. ``before``: the text of the answer up to here.

    ``said``: what the chat's rows prefer; ``recompute``: what reading afresh prefers. ``lead``: by how much recompute prefers
    it, in nats.
    """

    segment: int
    token: int
    before: str
    said: str
    recompute: str
    lead: float


@dataclass(frozen=True, eq=False)
class LiveCheck(ComparedAnswers):
    """All answers of a chat against recompute. ``changed``: tokens that are not as reading afresh would have made them."""

    differences: tuple[Difference, ...]
    n_tokens: int
    n_changed: int


def live_answers(notebook: Notebook, *, last: int | None = None) -> tuple[LiveAnswer, ...]:
    """What the chat's rows predict along its answers (the ``last`` ones). Runs on the chat's engine: about as long as reading
    the answers once. Raises UsageError where the chat has no answer yet."""
    places = [
        index for index, segment in enumerate(notebook.segments) if _is_answer(segment) and notebook.can_predict(index)
    ]
    if not places:
        raise UsageError("The chat has no answer yet, so there is nothing to compare.")
    if last is not None:
        places = places[-last:]
    return tuple(LiveAnswer(index, _content(notebook.segments[index]), notebook.predictions(index)) for index in places)


def check_chat(
    segments: Sequence[Segment], answers: Sequence[LiveAnswer], spare: Engine, *, step: Step = lambda what: None
) -> LiveCheck:
    """Read the chat afresh in ``spare`` (an engine of the same model) and compare.

    The chat is read with its fields' present values in place and without errata. Raises EngineError, Cancelled.
    """
    wanted = {one.index: one for one in answers}
    fresh = _as_read(spare, segments)
    differences: list[Difference] = []
    closeness = []
    seq = spare.new_sequence()
    try:
        pending: list[int] = []
        for index, segment in enumerate(fresh):
            live = wanted.get(index)
            if segment is None or live is None:
                pending += segment.tokens if segment is not None else ()
                continue
            step(f"reading up to answer {1 + sum(one.index < index for one in answers)} of {len(answers)}")
            start, stop = segment.content_start, segment.content_stop
            length = len(spare.tokens(seq))
            spare.apply(seq, [Keep(0, length), Decode((*pending, *segment.tokens[:start]))])
            rows = np.concatenate([spare.logits(seq)[np.newaxis], spare.score(seq, live.tokens)[:-1]])
            pending = list(segment.tokens[stop:])
            closeness.append(compare_rows(rows, live.logits))
            differences += _differences(spare, live, rows)
    finally:
        spare.free_sequence(seq)
    runs = [run for segment in segments for run in segment.runs]
    return LiveCheck(
        tuple(closeness),
        tuple(differences),
        sum(run.n_tokens for run in runs),
        sum(run.n_tokens for run in runs if run.freshness is not Freshness.FRESH),
    )


def _as_read(engine: Engine, segments: Sequence[Segment]) -> list[Segment | None]:
    """The chat as read afresh, None where there was an erratum, so that indices stay."""
    kept = iter(segments_as_if_read(engine, segments))
    return [None if segment.kind is Kind.ERRATUM else next(kept) for segment in segments]


def _differences(engine: Engine, live: LiveAnswer, rows: NDArray[np.float32]) -> list[Difference]:
    said, wanted = live.logits.argmax(axis=1), rows.argmax(axis=1)
    return [
        Difference(
            segment=live.index,
            token=at,
            before=engine.detokenize(live.tokens[:at]),
            said=engine.detokenize([int(said[at])]),
            recompute=engine.detokenize([int(wanted[at])]),
            lead=float(rows[at, wanted[at]] - rows[at, said[at]]),
        )
        for at in np.flatnonzero(said != wanted).tolist()
    ]


def _is_answer(segment: Segment) -> bool:
    return segment.kind is Kind.ASSISTANT and segment.proof is not None and segment.content_stop > segment.content_start


def _content(segment: Segment) -> tuple[int, ...]:
    return segment.tokens[segment.content_start : segment.content_stop]
