"""Measuring the skills of a library against a model and keeping the verdicts: what ``verify`` and ``skills compile`` call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kvnotes_local.contract.protocol import Engine, Progress
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.evaluation.fidelity import DEFAULT_POSITIONS, OtherEngine, Step
from kvnotes_local.evaluation.gate import GateResult, check_can_splice, default_seams, run_gate, try_seams
from kvnotes_local.evaluation.questions import Context, Question, bundled_contexts, bundled_questions, skill_questions
from kvnotes_local.skills.compiler import CompiledSkill, SkillCompiler
from kvnotes_local.skills.evals import load_questions
from kvnotes_local.skills.leads import DEFAULT_N_LEADS, LEAD_NUMBERS
from kvnotes_local.skills.skill import Skill
from kvnotes_local.skills.verdicts import VerdictStore


@dataclass(frozen=True)
class Effort:
    """How much is measured. ``contexts`` None: the bundled ones. ``seams`` None: the usual ones, or the one that the skill
    asks for. ``n_questions``: of those that come with the skill."""

    contexts: tuple[Context, ...] | None = None
    seams: tuple[int, ...] | None = None
    n_positions: int = DEFAULT_POSITIONS
    n_questions: int = 4


def verify_skill(
    engine: Engine,
    compiler: SkillCompiler,
    skill: Skill,
    verdicts: VerdictStore | None,
    *,
    other: OtherEngine | None = None,
    effort: Effort | None = None,
    progress: Progress | None = None,
    step: Step = lambda what: None,
) -> GateResult:
    """Compile a skill if need be, measure it, and keep the verdict in ``verdicts``, which the compiler then heeds.

    Where it fails, it is compiled behind another number of leads and measured again; if that passes, it is what is spliced.
    Nothing is kept where only seams that were asked for were tried and failed: another one might pass.

    ``other``: for the noise floor of KV types where another batch split moves nothing. Raises SkillError, ArtifactError,
    EngineError, Cancelled, and KvnotesError for models that do not splice.
    """
    effort = effort or Effort()
    check_can_splice(engine.info)
    questions = skill_questions(load_questions(skill), effort.n_questions)  # before minutes of compiling
    compiled = compiler.compile(skill, n_leads=DEFAULT_N_LEADS, progress=progress)
    own = None if skill.settings.repair is None else (skill.settings.repair,)
    result = run_gate(
        engine,
        [compiled],
        effort.contexts or bundled_contexts(engine),
        questions,
        other=other,
        seams=effort.seams or own,
        n_positions=effort.n_positions,
        step=step,
    )
    tried, made = [result], [compiled]
    for n_leads in LEAD_NUMBERS:
        if result.passed or n_leads == DEFAULT_N_LEADS:
            continue
        again = compiler.compile(skill, n_leads=n_leads, progress=progress)
        made.append(again)
        reference = replace(result.reference, skills=(again,))
        seams = effort.seams or own or default_seams(engine.info)
        result = try_seams(engine, reference, result.noise, seams, step=step)
        tried.append(result)
    if verdicts is not None and (result.passed or effort.seams is None):
        for one in tried:
            verdicts.put(one.verdict(engine.info))
    compiler.drop_unused(skill, made)
    return result if result.passed else tried[0]


def verify_together(
    engine: Engine,
    compiler: SkillCompiler,
    skills: Sequence[Skill],
    *,
    other: OtherEngine | None = None,
    effort: Effort | None = None,
    progress: Progress | None = None,
    step: Step = lambda what: None,
) -> GateResult:
    """Measure skills spliced one behind the other. Nothing is kept: verdicts are about single skills. Raises as above."""
    effort = effort or Effort()
    check_can_splice(engine.info)
    questions: tuple[Question, ...] = ()
    for skill in skills:
        questions += skill_questions(load_questions(skill), max(1, effort.n_questions // len(skills)))[:-1]
    compiled: list[CompiledSkill] = [compiler.compile(skill, progress=progress) for skill in skills]
    return run_gate(
        engine,
        compiled,
        effort.contexts or bundled_contexts(engine),
        tuple(dict.fromkeys(questions + bundled_questions()[:1])),
        other=other,
        seams=effort.seams,
        n_positions=effort.n_positions,
        step=step,
    )


def other_engines(engine: LlamaEngine, cache_dir: Path | None = None) -> OtherEngine:
    """Opens further engines of the same model in this process, with changed parameters."""

    @contextmanager
    def open_other(**changes: object) -> Iterator[Engine]:
        second = LlamaEngine(engine.info.path, replace(engine.params, **changes), cache_dir=cache_dir)  # type: ignore[arg-type]
        try:
            yield second
        finally:
            second.close()

    return open_other
