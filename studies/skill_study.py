"""What moves the fidelity of a splice: leads, seam, rotation, number of skills. Each way is led through the same answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvnotes_local.contract.protocol import Engine
from kvnotes_local.evaluation.fidelity import (
    Fidelity,
    OtherEngine,
    Recompute,
    Step,
    contexts_read,
    measure_noise,
    measure_plan,
    measure_splice,
    recompute,
)
from kvnotes_local.evaluation.questions import Context, Question
from kvnotes_local.evaluation.statistics import Estimate, estimate
from kvnotes_local.skills.compiler import CompiledSkill
from kvnotes_local.wording import counted
from studies.skill_ways import Ways


@dataclass(frozen=True)
class WayRow:
    """One way against recompute. ``versus``: mean KL minus that of the way it is compared with, position by position; None
    for that way itself."""

    way: str
    cosine: float
    kl: Estimate
    top1: Estimate
    decisions: int
    same: int
    versus: Estimate | None = None


@dataclass(frozen=True)
class Study:
    """Ways of taking one skill (or several) into a chat. ``noise``: row of the floor, with its ``source``."""

    skill: str
    n_tokens: int
    source: str
    noise: WayRow
    rows: tuple[WayRow, ...]


ARTIFACT_WAY = "artifact, "
"""How the names of ways with the artifact as it is begin."""


def study_skill(
    engine: Engine,
    skill: CompiledSkill,
    contexts: Sequence[Context],
    questions: Sequence[Question],
    *,
    ways: Ways,
    seams: Sequence[int],
    other: OtherEngine | None = None,
    n_positions: int = 32,
    step: Step = lambda what: None,
) -> Study:
    """Every seam of the skill's own artifact and every other way, compared with the artifact without a seam."""
    reference = recompute(engine, [skill], contexts, questions, n_positions=n_positions, step=step)
    noise = measure_noise(engine, reference, other, step=step)
    with contexts_read(engine, contexts) as bases:
        plain = measure_splice(engine, reference, 0, bases=bases, step=step)
        rows = [_row(f"{ARTIFACT_WAY}seam of 0", plain, None)]
        for seam in seams:
            if 0 < seam < skill.n_tokens:
                measured = measure_splice(engine, reference, seam, bases=bases, step=step)
                rows.append(_row(f"{ARTIFACT_WAY}seam of {seam}", measured, plain))
        for name, way in ways.items():
            rows.append(_row(name, measure_plan(engine, reference, way, bases=bases, step=step), plain))
    return Study(
        skill.skill.name, skill.n_tokens, noise.source.value, _row("noise floor", noise.fidelity, None), tuple(rows)
    )


def study_together(
    engine: Engine,
    skills: Sequence[CompiledSkill],
    contexts: Sequence[Context],
    questions: Sequence[Question],
    *,
    seams: Sequence[int] = (0,),
    other: OtherEngine | None = None,
    n_positions: int = 32,
    step: Step = lambda what: None,
) -> Study:
    """Several skills spliced one behind the other."""
    reference: Recompute = recompute(engine, skills, contexts, questions, n_positions=n_positions, step=step)
    noise = measure_noise(engine, reference, other, step=step)
    rows = [
        _row(
            f"{counted(len(skills), 'skill')}, seam of {seam}", measure_splice(engine, reference, seam, step=step), None
        )
        for seam in seams
    ]
    names = ", ".join(skill.skill.name for skill in skills)
    n_tokens = sum(skill.n_tokens for skill in skills)
    return Study(names, n_tokens, noise.source.value, _row("noise floor", noise.fidelity, None), tuple(rows))


def _row(way: str, fidelity: Fidelity, base: Fidelity | None) -> WayRow:
    groups = np.repeat(np.arange(len(fidelity.answers)), [len(one.kl) for one in fidelity.answers])
    top1 = np.concatenate([one.top1 for one in fidelity.answers])
    return WayRow(
        way=way,
        cosine=fidelity.cosine_mean,
        kl=estimate(fidelity.kl, groups),
        top1=estimate(top1, groups),
        decisions=len(fidelity.decisions),
        same=sum(one.same for one in fidelity.decisions),
        versus=None if base is None else estimate(fidelity.kl - base.kl, groups),
    )
