"""Scripted chats: steps played on a notebook, each question compared with reading afresh on request."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.contract.plan import Decode
from kvnotes_local.errors import Cancelled, KvnotesError
from kvnotes_local.evaluation.logits import cosine, kl_divergence
from kvnotes_local.evaluation.recompute import as_if_read
from kvnotes_local.notebook.edit import DEFAULT_WINDOW, EditLevel
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.proof import Proof
from kvnotes_local.notebook.segment import all_tokens
from kvnotes_local.wording import counted


class EpisodeError(KvnotesError):
    """An episode file cannot be read or played; the message names the step."""


@dataclass(frozen=True)
class Step:
    """One step: what to do, with what, and how."""

    number: int
    action: str
    argument: Any
    options: dict[str, Any]


@dataclass(frozen=True)
class Episode:
    """``system``: None for the model's own system text."""

    system: str | None
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Compared:
    """A question against reading the whole chat afresh. ``decision``: the likeliest choice, where choices were given.

    ``kl``: of the next token's distribution, recompute ‖ here, in nats. Times in milliseconds to the first token.
    """

    cosine: float
    kl: float
    top1_agrees: bool
    decision: str | None
    recompute_decision: str | None
    ttft_ms: float
    recompute_ms: float
    recompute_tokens: int


@dataclass(frozen=True)
class StepReport:
    """What a step did. ``proof``: of an answer; ``note``: in words."""

    step: Step
    note: str
    proof: Proof | None = None
    reply: str | None = None
    compared: Compared | None = None


def play(
    episode: Episode,
    notebook: Notebook,
    *,
    compare: bool = False,
    told: Callable[[StepReport], None] = lambda report: None,
) -> list[StepReport]:
    """Play an episode on a fresh notebook made with its system text. Raises what the steps raise, with the step's number."""
    reports = []
    for step in episode.steps:
        try:
            notebook, report = _play_step(step, notebook, compare)
        except (EpisodeError, Cancelled):
            raise
        except KvnotesError as error:
            raise EpisodeError(f"Step {step.number} ({step.action}): {error}") from error
        reports.append(report)
        told(report)
    return reports


def _play_step(step: Step, notebook: Notebook, compare: bool) -> tuple[Notebook, StepReport]:
    options = step.options
    match step.action:
        case "say":
            notebook.say(step.argument, options.get("answer", "I see."))
            return notebook, StepReport(step, "said")
        case "splice":
            values = {name: str(value) for name, value in options.get("values", {}).items()}
            segment = notebook.splice(
                step.argument, at=options.get("at"), repair=options.get("repair"), values=values or None
            )
            return notebook, StepReport(step, f"{counted(segment.n_tokens, 'token')}")
        case "set":
            level = EditLevel(options.get("level", EditLevel.FIELD_ERRATUM))
            window = options.get("window", DEFAULT_WINDOW)
            results = [
                notebook.set(name, str(value), level=level, window=window) for name, value in step.argument.items()
            ]
            note = "; ".join(
                f"{one.field}: {one.level}, {one.decoded:,} decoded, {one.moved:,} moved" for one in results
            )
            return notebook, StepReport(step, note)
        case "drop":
            notebook.drop(step.argument, clean=options.get("clean", False))
            return notebook, StepReport(step, "dropped")
        case "fork":
            twin = notebook.fork(step.argument)
            return twin, StepReport(step, f"going on in a fork of {counted(len(twin.segments), 'segment')}")
        case "undo":
            done = sum(notebook.undo() for _ in range(step.argument))
            return notebook, StepReport(step, f"{counted(done, 'change')} taken back")
        case _:
            return notebook, _ask(step, notebook, compare)


def _ask(step: Step, notebook: Notebook, compare: bool) -> StepReport:
    reply = notebook.ask(step.argument, max_tokens=step.options.get("max_tokens", 64), keep_logits=compare)
    note = "; ".join(f"{edit.field}: {edit.level} ({edit.reason})" for edit in reply.edits)
    compared = None
    if compare and reply.first_logits is not None:
        choices = step.options.get("choices", [])
        compared = _compare(notebook, reply.first_logits, choices, reply.proof.change_ms + reply.proof.ttft_ms)
    return StepReport(step, note, reply.proof, reply.text, compared)


def _compare(notebook: Notebook, found: NDArray[np.float32], choices: list[str], ttft_ms: float) -> Compared:
    engine = notebook.engine
    segments = as_if_read(notebook)
    answer = segments[-1]
    tokens = all_tokens(segments)[: -answer.n_tokens] + list(answer.tokens[: answer.content_start])
    seq = engine.new_sequence()
    try:
        began = time.perf_counter()
        engine.apply(seq, [Decode(tuple(tokens))])
        wanted = engine.logits(seq)
        elapsed = (time.perf_counter() - began) * 1e3
    finally:
        engine.free_sequence(seq)
    first = [(choice, engine.tokenize(choice)[0]) for choice in choices]
    return Compared(
        cosine=cosine(found, wanted),
        kl=kl_divergence(wanted, found),
        top1_agrees=bool(np.argmax(found) == np.argmax(wanted)),
        decision=max(first, key=lambda one: found[one[1]])[0] if first else None,
        recompute_decision=max(first, key=lambda one: wanted[one[1]])[0] if first else None,
        ttft_ms=ttft_ms,
        recompute_ms=elapsed,
        recompute_tokens=len(tokens),
    )
