"""Many artifacts at once: a plan of what is missing, then making it in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvnotes_local.contract.compile_job import BatchCost, CompileEvent, JobDone, JobFailed, JobSkipped, too_long
from kvnotes_local.contract.plan import Splice
from kvnotes_local.contract.protocol import Engine
from kvnotes_local.contract.store_type import StoreType
from kvnotes_local.errors import KvnotesError
from kvnotes_local.skills.compiler import CompiledSkill, SkillCompiler
from kvnotes_local.skills.skill import Skill
from kvnotes_local.skills.speeds import ModelSpeed
from kvnotes_local.skills.task import Task

Q8_0_SHARE = 34 / 64
"""Bytes of a Q8_0 row for each byte of an F16 one."""
_FEW_TOKENS = 16


class PlanStatus(StrEnum):
    """MISSING: will be made. IMPOSSIBLE: cannot be made, and why is known before starting."""

    UP_TO_DATE = "up to date"
    MISSING = "missing"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class PlannedSkill:
    """One skill of a plan. ``n_bytes``: of the artifact, estimated where it is missing (0 where that is not known).

    ``existing`` is there where the status is UP_TO_DATE, ``task`` unless it is IMPOSSIBLE, ``problem`` if it is.
    """

    skill: Skill
    status: PlanStatus
    n_tokens: int = 0
    n_bytes: int = 0
    n_decoded: int = 0
    task: Task | None = None
    existing: CompiledSkill | None = None
    problem: str = ""


Outcome = CompiledSkill | KvnotesError | None
"""What became of a planned skill: made, failed, or (None) made by another process meanwhile."""


def plan_skills(
    engine: Engine, compiler: SkillCompiler, skills: Iterable[Skill], *, force: bool = False
) -> tuple[PlannedSkill, ...]:
    """What there is and what is missing, from the shortest to the longest. Nothing is computed.

    Checksums of what exists are not compared: that is done whenever an artifact is used.
    """
    planned = []
    for skill in skills:
        try:
            task = compiler.task(skill)
        except KvnotesError as error:
            planned.append(PlannedSkill(skill, PlanStatus.IMPOSSIBLE, problem=str(error)))
            continue
        n_tokens = len(task.turn.tokens)
        existing = None if force else compiler.existing(skill, task, verify=False)
        if existing is not None:
            one = PlannedSkill(skill, PlanStatus.UP_TO_DATE, n_tokens, existing.n_bytes, task=task, existing=existing)
        elif (problem := too_long(task.job(), engine.info.n_ctx)) is not None:
            one = PlannedSkill(skill, PlanStatus.IMPOSSIBLE, n_tokens, problem=str(problem))
        else:
            share = Q8_0_SHARE if task.store is StoreType.Q8_0 else 1.0
            n_bytes = int(engine.info.kv_bytes_per_token * n_tokens * share)
            one = PlannedSkill(
                skill, PlanStatus.MISSING, n_tokens, n_bytes, n_decoded=n_tokens * len(task.leads), task=task
            )
        planned.append(one)
    return tuple(sorted(planned, key=lambda one: one.n_tokens))


def make_missing(
    engine: Engine,
    compiler: SkillCompiler,
    planned: Sequence[PlannedSkill],
    *,
    force: bool = False,
    progress: Callable[[PlannedSkill, int], None] | None = None,
    finished: Callable[[PlannedSkill, Outcome], None] | None = None,
) -> BatchCost:
    """Make what is missing in a plan. ``progress``: tokens of the skill done; ``finished``: once for each missing skill.

    Raises Cancelled and DiskFullError; what was finished before stays.
    """
    missing = [(one, one.task) for one in planned if one.status is PlanStatus.MISSING and one.task is not None]

    def listen(event: CompileEvent) -> None:
        one, task = missing[event.job]
        if isinstance(event, JobDone):
            outcome: Outcome = compiler.compiled(one.skill, task, event.compiled)
        elif isinstance(event, JobFailed):
            outcome = event.error
        elif isinstance(event, JobSkipped):
            outcome = None
        else:
            if progress is not None:
                progress(one, event.done)
            return
        if finished is not None:
            finished(one, outcome)

    return engine.compile_many([task.job(keep_existing=not force) for _, task in missing], listen=listen)


def measured_speed(engine: Engine, cost: BatchCost, made: Sequence[CompiledSkill]) -> ModelSpeed | None:
    """Speeds after a batch; splicing is timed with the longest artifact of rows that was made."""
    if cost.tokens_per_second is None:
        return None
    prefill = cost.decoded / cost.decode_seconds if cost.decode_seconds else cost.tokens_per_second
    longest = max(made, key=lambda one: one.n_tokens, default=None)
    if longest is None or longest.n_tokens <= 2 * _FEW_TOKENS or not engine.info.rotation_residual:
        return ModelSpeed(prefill)
    few = _splice_seconds(engine, longest, _FEW_TOKENS)
    token = max(0.0, _splice_seconds(engine, longest, longest.n_tokens) - few) / (longest.n_tokens - _FEW_TOKENS)
    return ModelSpeed(prefill, max(1e-6, few - _FEW_TOKENS * token), token)


def _splice_seconds(engine: Engine, compiled: CompiledSkill, n_tokens: int) -> float:
    seconds = []
    for _ in range(3):
        seq = engine.new_sequence()
        try:
            seconds.append(engine.apply(seq, [Splice(compiled.path, 0, n_tokens)], logits=False).seconds)
        finally:
            engine.free_sequence(seq)
    return min(seconds)
