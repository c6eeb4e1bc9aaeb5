"""Splicing against full recompute, position by position, and how far recompute moves from itself (the noise floor).

Recompute reads context, skills and question as a chat would; its own greedy answer is what every other way is led through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from kvnotes_local.contract.plan import Decode, Part, Splice
from kvnotes_local.contract.protocol import Engine
from kvnotes_local.evaluation.answering import Answer, answer, built, forked
from kvnotes_local.evaluation.logits import ComparedAnswers, compare_rows
from kvnotes_local.evaluation.questions import Context, Question, ask_tokens
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.skills.compiler import CompiledSkill

DEFAULT_POSITIONS = 32
SPLIT_TOKENS = 100
"""Length of the batches in which the noise floor is read; odd on purpose, so that no kernel sees the same shapes."""

Bases = Mapping[str, int]
"""Sequence that holds each context, by the context's name."""

OtherEngine = Callable[..., AbstractContextManager[Engine]]
"""Opens another engine of the same model; takes changes of EngineParams by name."""

Step = Callable[[str], None]
"""Told what is measured now."""


class NoiseSource(StrEnum):
    """What was changed in a second recompute. On some paths another batch split changes nothing at all; then the next
    source that changes something is the floor."""

    BATCH_SPLIT = "another batch split"
    NO_FLASH = "no flash attention"
    OTHER_KV = "another KV type"


@dataclass(frozen=True)
class Decision:
    """A question with choices, decided by recompute and in another way: log-probabilities over the choices."""

    context: str
    ask: str
    choices: tuple[str, ...]
    expect: str
    recompute: tuple[float, ...]
    other: tuple[float, ...]

    @property
    def margin(self) -> float:
        """Log-probability by which recompute prefers its choice to the next best."""
        best = sorted(self.recompute)
        return float(best[-1] - best[-2])

    @property
    def shift(self) -> float:
        """How much of that margin the other way adds or takes (absolute)."""
        first, second = np.argsort(self.recompute)[:-3:-1]
        return float(abs(self.margin - (self.other[first] - self.other[second])))

    @property
    def same(self) -> bool:
        """Both ways prefer the same choice."""
        return int(np.argmax(self.recompute)) == int(np.argmax(self.other))


@dataclass(frozen=True, eq=False)
class Fidelity(ComparedAnswers):
    """One way against recompute over all contexts and questions. ``answers[i]``: positions of one answer."""

    decisions: tuple[Decision, ...]

    @property
    def moved(self) -> bool:
        """Is anything different at all?"""
        return any(bool(np.any(one.kl > 1e-12)) for one in self.answers)

    def over(self, noise: Fidelity) -> float | None:
        """Mean KL as a multiple of the noise's; None where noise was not seen to move anything."""
        return self.kl_mean / noise.kl_mean if noise.moved else None


@dataclass(frozen=True, eq=False)
class NoiseFloor:
    """How far full recompute moves from itself. ``source``: what was changed."""

    source: NoiseSource
    fidelity: Fidelity


@dataclass(frozen=True, eq=False)
class _Asked:
    context: Context
    question: Question
    answer: Answer


@dataclass(frozen=True, eq=False)
class Recompute:
    """Answers of full recompute in every context to every question: what everything is compared with.

    Holds the logits of all positions: 4 bytes × vocabulary × positions.
    """

    skills: tuple[CompiledSkill, ...]
    asked: tuple[_Asked, ...] = field(repr=False)

    @property
    def contexts(self) -> tuple[Context, ...]:
        return tuple({one.context.name: one.context for one in self.asked}.values())


def recompute(
    engine: Engine,
    skills: Sequence[CompiledSkill],
    contexts: Sequence[Context],
    questions: Sequence[Question],
    *,
    n_positions: int = DEFAULT_POSITIONS,
    step: Step = lambda what: None,
) -> Recompute:
    """Read each context and the skills behind it, and answer each question greedily."""
    asked = []
    for context in contexts:
        step(f"reading the skill behind {context.name}")
        with built(engine, [Decode(context.tokens), *reading(skills)]) as seq:
            for question in questions:
                given = answer(engine, seq, ask_tokens(engine, question), n_positions=n_positions)
                asked.append(_Asked(context, question, given))
    return Recompute(tuple(skills), tuple(asked))


def reading(skills: Iterable[CompiledSkill]) -> list[Part]:
    """Parts of a plan that read the skills, one batch each."""
    return [Decode(skill.turn.tokens) for skill in skills]


def splicing(skills: Iterable[CompiledSkill], repair: int) -> list[Part]:
    """Parts of a plan that splice the skills, computing the first ``repair`` tokens of each."""
    parts: list[Part] = []
    for skill in skills:
        k = min(repair, skill.n_tokens)
        parts += [Decode(skill.turn.tokens[:k]), Splice(skill.path, k, skill.n_tokens)]
    return parts


@contextmanager
def contexts_read(engine: Engine, contexts: Sequence[Context]) -> Iterator[Bases]:
    """The contexts in sequences of their own, to be forked by everything that is measured behind them."""
    with ExitStack() as stack:
        yield {context.name: stack.enter_context(built(engine, [Decode(context.tokens)])) for context in contexts}


def measure_splice(
    engine: Engine, reference: Recompute, repair: int, *, bases: Bases | None = None, step: Step = lambda what: None
) -> Fidelity:
    """The skills spliced with ``repair`` seam tokens, against recompute. ``bases``: see ``contexts_read``."""
    return measure_plan(engine, reference, lambda context: splicing(reference.skills, repair), bases=bases, step=step)


def measure_plan(
    engine: Engine,
    reference: Recompute,
    parts_behind: Callable[[Context], Sequence[Part]],
    *,
    bases: Bases | None = None,
    step: Step = lambda what: None,
) -> Fidelity:
    """Whatever a plan puts behind each context, against recompute. The context itself is read as recompute reads it."""

    def make(context: Context) -> AbstractContextManager[int]:
        if bases is not None:
            return forked(engine, bases[context.name], parts_behind(context))
        return built(engine, [Decode(context.tokens), *parts_behind(context)])

    return _measure(engine, reference, make, step, "splicing behind")


def measure_noise(
    engine: Engine, reference: Recompute, other: OtherEngine | None, *, step: Step = lambda what: None
) -> NoiseFloor:
    """The noise floor, from the first source that moves anything. ``other`` None: only another batch split is tried."""

    def in_pieces(context: Context) -> AbstractContextManager[int]:
        tokens = context.tokens + tuple(token for skill in reference.skills for token in skill.turn.tokens)
        pieces = [Decode(tokens[at : at + SPLIT_TOKENS]) for at in range(0, len(tokens), SPLIT_TOKENS)]
        return built(engine, pieces)

    floor = NoiseFloor(
        NoiseSource.BATCH_SPLIT, _measure(engine, reference, in_pieces, step, "reading again in other batches:")
    )
    if floor.fidelity.moved or other is None:
        return floor
    for source, changes in _other_engines(engine):
        with ExitStack() as stack:
            second = stack.enter_context(other(**changes))

            def as_before(context: Context, second: Engine = second) -> AbstractContextManager[int]:
                return built(second, [Decode(context.tokens), *reading(reference.skills)])

            floor = NoiseFloor(source, _measure(second, reference, as_before, step, f"reading again, {source}:"))
        if floor.fidelity.moved:
            break
    return floor


def _other_engines(engine: Engine) -> list[tuple[NoiseSource, dict[str, object]]]:
    info = engine.info
    floats = {GGMLType.F32, GGMLType.F16, GGMLType.BF16}
    type_ = GGMLType.F16 if info.type_k is not GGMLType.F16 else GGMLType.Q8_0
    other_kv: tuple[NoiseSource, dict[str, object]] = (NoiseSource.OTHER_KV, {"type_k": type_, "type_v": type_})
    if info.type_v in floats:  # llama.cpp quantizes values with flash attention only
        return [(NoiseSource.NO_FLASH, {"flash_attn": False}), other_kv]
    return [other_kv]


def _measure(
    engine: Engine,
    reference: Recompute,
    make: Callable[[Context], AbstractContextManager[int]],
    step: Step,
    what: str,
) -> Fidelity:
    answers, decisions = [], []
    for context in reference.contexts:
        step(f"{what} {context.name}")
        with make(context) as seq:
            for one in reference.asked:
                if one.context is not context:
                    continue
                given = answer(engine, seq, ask_tokens(engine, one.question), tokens=one.answer.tokens)
                answers.append(compare_rows(one.answer.logits, given.logits))
                if one.question.choices:
                    decisions.append(_decision(one, given))
    return Fidelity(tuple(answers), tuple(decisions))


def _decision(one: _Asked, given: Answer) -> Decision:
    return Decision(
        one.context.name,
        one.question.ask,
        one.question.choices,
        one.question.expect,
        tuple(map(float, one.answer.choices)),
        tuple(map(float, given.choices)),
    )
