"""The gate: is splicing this skill into this model as good as reading it, and with how many seam tokens?

Passed when mean KL ≤ max(3 × noise, 0.02), top-1 agreement ≥ the noise's − 0.03, and every decision whose margin stands above
the noise is the same. The cheapest seam that passes is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite

from kvnotes_local.contract.model_info import ModelClass, ModelInfo
from kvnotes_local.contract.protocol import Engine
from kvnotes_local.errors import KvnotesError
from kvnotes_local.evaluation.fidelity import (
    DEFAULT_POSITIONS,
    Decision,
    Fidelity,
    NoiseFloor,
    OtherEngine,
    Recompute,
    Step,
    contexts_read,
    measure_noise,
    measure_splice,
    recompute,
)
from kvnotes_local.evaluation.questions import Context, Question
from kvnotes_local.skills.compiler import CompiledSkill
from kvnotes_local.skills.verdicts import Outcome, Verdict, conditions_of
from kvnotes_local.wording import counted

SEAMS = (0, 2, 8, 32)
KL_FLOOR = 0.02
KL_FACTOR = 3.0
TOP1_SLACK = 0.03


@dataclass(frozen=True, eq=False)
class Trial:
    """One seam that was tried. ``failures``: in words, none where it passed."""

    repair_tokens: int
    fidelity: Fidelity
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.failures


@dataclass(frozen=True, eq=False)
class GateResult:
    """What was measured for skills that were spliced together (mostly one). ``trials``: from the cheapest seam on."""

    reference: Recompute
    noise: NoiseFloor
    trials: tuple[Trial, ...]

    @property
    def skills(self) -> tuple[CompiledSkill, ...]:
        return self.reference.skills

    @property
    def n_leads(self) -> int:
        """Leads whose rows were averaged."""
        return max(skill.n_leads for skill in self.skills)

    @property
    def passed(self) -> bool:
        return self.best.passed

    @property
    def best(self) -> Trial:
        """The cheapest seam that passed, else the one with the smallest KL."""
        return next((one for one in self.trials if one.passed), None) or min(
            self.trials, key=lambda one: one.fidelity.kl_mean
        )

    def verdict(self, info: ModelInfo) -> Verdict:
        """To be kept for the (single) skill."""
        best, noise = self.best.fidelity, self.noise.fidelity
        (skill,) = self.skills
        return Verdict(
            conditions=conditions_of(info, skill.key),
            outcome=Outcome.PASSED if self.passed else Outcome.FAILED,
            skill=skill.skill.name,
            model=info.name,
            repair_tokens=self.best.repair_tokens,
            cosine_mean=_finite(best.cosine_mean, -1.0),
            kl_mean=_finite(best.kl_mean, 1e9),
            noise_kl_mean=_finite(noise.kl_mean, 1e9),
            top1_agreement=best.top1_agreement,
            noise_top1_agreement=noise.top1_agreement,
            n_positions=best.n_positions,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def run_gate(
    engine: Engine,
    skills: Sequence[CompiledSkill],
    contexts: Sequence[Context],
    questions: Sequence[Question],
    *,
    other: OtherEngine | None = None,
    seams: Sequence[int] | None = None,
    n_positions: int = DEFAULT_POSITIONS,
    step: Step = lambda what: None,
) -> GateResult:
    """Measure skills (together, where there are several) until a seam passes. ``seams``: None for the usual ones.

    Raises KvnotesError for a model that cannot splice.
    """
    check_can_splice(engine.info)
    reference = recompute(engine, skills, contexts, questions, n_positions=n_positions, step=step)
    noise = measure_noise(engine, reference, other, step=step)
    return try_seams(engine, reference, noise, seams or default_seams(engine.info), step=step)


def try_seams(
    engine: Engine, reference: Recompute, noise: NoiseFloor, seams: Sequence[int], *, step: Step = lambda what: None
) -> GateResult:
    """Try seams from the shortest on until one passes."""
    trials: list[Trial] = []
    longest = max(skill.n_tokens for skill in reference.skills)  # a seam of the whole skill would be reading it
    with contexts_read(engine, reference.contexts) as bases:
        for repair in sorted({seam for seam in seams if seam < longest} or {0}):

            def tell(what: str, repair: int = repair) -> None:
                step(f"{what}, seam of {repair}")

            fidelity = measure_splice(engine, reference, repair, bases=bases, step=tell)
            trials.append(Trial(repair, fidelity, tuple(failures(fidelity, noise.fidelity))))
            if trials[-1].passed:
                break
    return GateResult(reference, noise, tuple(trials))


def failures(fidelity: Fidelity, noise: Fidelity) -> list[str]:
    """Why a way is not as good as recompute; nothing where it is."""
    found = []
    limit = max(KL_FACTOR * noise.kl_mean, KL_FLOOR)
    if not fidelity.kl_mean <= limit:
        found.append(f"mean KL {fidelity.kl_mean:.4f} is above {limit:.4f}")
    wanted = noise.top1_agreement - TOP1_SLACK
    if not fidelity.top1_agreement >= wanted:
        found.append(f"top-1 agreement {fidelity.top1_agreement:.3f} is below {wanted:.3f}")
    flipped = [one for one in clear_decisions(fidelity, noise) if not one.same]
    if flipped:
        worst = max(flipped, key=lambda one: one.margin)
        found.append(f"{counted(len(flipped), 'decision')} changed, the clearest: {worst.ask!r} in {worst.context}")
    return found


def clear_decisions(fidelity: Fidelity, noise: Fidelity) -> list[Decision]:
    """Decisions whose margin is more than the noise was seen to move a margin."""
    shift = max((one.shift for one in noise.decisions), default=0.0)
    return [one for one in fidelity.decisions if one.margin > shift]


def default_seams(info: ModelInfo) -> tuple[int, ...]:
    """Seams to try; for sliding-window models also one as long as the window."""
    return (*SEAMS, info.n_swa) if info.n_swa else SEAMS


def check_can_splice(info: ModelInfo) -> None:
    """Raises KvnotesError for a model that cannot splice."""
    if info.model_class is not ModelClass.SPLICE:
        why = (
            "it restores a skill as a whole state, which is what reading it gives"
            if info.model_class is ModelClass.PREFIX_ONLY
            else "it reads every skill"
        )
        raise KvnotesError(f"There is nothing to measure for {info.name}: {why} ({info.class_reason}).")


def _finite(value: float, worst: float) -> float:
    """Rows that are rubbish give NaN, which a verdict cannot hold."""
    return value if isfinite(value) else worst


def flips_within_noise(fidelity: Fidelity, noise: Fidelity) -> list[Decision]:
    """Decisions that changed, but whose margin is not above what noise was seen to move a margin."""
    clear = clear_decisions(fidelity, noise)
    return [one for one in fidelity.decisions if not one.same and one not in clear]
