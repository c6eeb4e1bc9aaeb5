"""One run of ``skills compile``: plan for every model, look whether the disk has room, make what is missing, sum up."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvnotes_local.cli.options import EngineOptions
from kvnotes_local.cli.output import Output, human_bytes
from kvnotes_local.cli.quantities import human_seconds
from kvnotes_local.cli.session import Session, artifact_store, cache_directory, open_session
from kvnotes_local.engine.model_info import ModelClass
from kvnotes_local.engine.store_type import StoreType
from kvnotes_local.errors import Cancelled, DiskFullError, KvnotesError
from kvnotes_local.skills.batch import (
    Outcome,
    PlannedSkill,
    PlanStatus,
    make_missing,
    measured_speed,
    plan_skills,
)
from kvnotes_local.skills.compiler import CompiledSkill
from kvnotes_local.skills.library import SkillLibrary
from kvnotes_local.skills.skill_file import Skill
from kvnotes_local.skills.speeds import ModelSpeed, SpeedMemory
from kvnotes_local.skills.verdicts import Outcome as VerdictOutcome
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from kvnotes_local.cli.batch_report import BatchReport
    from kvnotes_local.engine.compile_job import BatchCost

_DISK_MARGIN = 16 << 20


@dataclass(frozen=True)
class Wanted:
    """Which skills. ``references``: files of theirs that are compiled as parts of their own, where a skill has them."""

    names: tuple[str, ...]
    everything: bool
    references: tuple[str, ...]
    skills_dirs: tuple[Path, ...]

    def library(self) -> SkillLibrary:
        return SkillLibrary.default(self.skills_dirs)

    def skills(self) -> tuple[list[Skill], list[tuple[str, str]]]:
        """The skills as they are now, and those that cannot be read with the reason. Raises SkillError for a name that was
        given."""
        library, skills, broken = self.library(), [], []
        for name in [skill.name for skill in library.skills] if self.everything else self.names:
            try:
                skill = library.get(name)
            except KvnotesError as error:
                if not self.everything:
                    raise
                broken.append((name, str(error)))
                continue
            skills.append(skill)
            for reference in self.references:
                if not self.everything or (skill.folder / reference).is_file():
                    skills.append(library.get(f"{name}/{reference}"))
        return skills, broken


@dataclass
class _ModelPlan:
    """What a model has and lacks. ``name`` is that of the model once it was loaded, before that what the user typed."""

    name: str
    fingerprint: str = ""
    planned: tuple[PlannedSkill, ...] = ()
    speed: ModelSpeed | None = None
    problem: str = ""

    @property
    def missing(self) -> list[PlannedSkill]:
        return [one for one in self.planned if one.status is PlanStatus.MISSING]


@dataclass
class BatchRun:
    """A batch that can be gone through again (``--watch``). ``models``: names or files; None for the first model found."""

    wanted: Wanted
    models: Sequence[str | None]
    options: EngineOptions
    store: StoreType
    output: Output
    report: BatchReport
    verify: bool = False
    entries: list[dict[str, Any]] = field(default_factory=list)
    model_entries: list[dict[str, Any]] = field(default_factory=list)
    verdict_entries: list[dict[str, Any]] = field(default_factory=list)
    gates_failed: list[str] = field(default_factory=list)

    @property
    def n_all(self) -> int:
        return len(self.entries)

    @property
    def n_failed(self) -> int:
        return sum(entry["status"] == "failed" for entry in self.entries)

    def document(self) -> dict[str, Any]:
        return {"artifacts": self.entries, "models": self.model_entries, "verdicts": self.verdict_entries}

    def go(self, *, force: bool = False, only_plan: bool = False) -> None:
        """Plan and make. Failures of skills and models are noted and counted. Raises KvnotesError for what stops all,
        Cancelled with a message that says how to go on."""
        self.entries.clear()
        self.model_entries.clear()
        self.verdict_entries.clear()
        self.gates_failed.clear()
        skills, broken = self.wanted.skills()
        try:
            if len(self.models) == 1:
                with self._session(self.models[0]) as session:
                    plan = self._plan(session, skills, force)
                    self._tell_plans([plan], broken)
                    if not only_plan:
                        self._make(session, plan, force)
                return
            plans = [self._plan_alone(model, skills, force) for model in self.models]
            self._tell_plans(plans, broken)
            if only_plan:
                return
            for model, plan in zip(self.models, plans, strict=True):
                if plan.missing or (self.verify and not plan.problem):
                    with self._session(model) as session:
                        self._make(session, plan, force)
        except Cancelled as error:
            raise Cancelled(self._stopped()) from error

    def _session(self, model: str | None) -> Any:
        return open_session(
            replace(self.options, model=model), self.output, skills_dirs=self.wanted.skills_dirs, store_type=self.store
        )

    def _plan_alone(self, model: str | None, skills: Sequence[Skill], force: bool) -> _ModelPlan:
        try:
            with self._session(model) as session:
                return self._plan(session, skills, force)
        except Cancelled:
            raise
        except KvnotesError as error:
            return _ModelPlan(str(model), problem=str(error))

    def _plan(self, session: Session, skills: Sequence[Skill], force: bool) -> _ModelPlan:
        info = session.engine.info
        return _ModelPlan(
            info.name,
            info.fingerprint,
            plan_skills(session.engine, session.compiler, skills, force=force),
            SpeedMemory(cache_directory(self.options)).get(info.fingerprint),
        )

    def _tell_plans(self, plans: Sequence[_ModelPlan], broken: Sequence[tuple[str, str]]) -> None:
        for name, problem in broken:
            self._fail("", name, problem)
        for plan in plans:
            if plan.problem:
                self._fail(plan.name, "", plan.problem)
                continue
            missing = plan.missing
            n_tokens, n_bytes = sum(one.n_tokens for one in missing), sum(one.n_bytes for one in missing)
            seconds = sum(one.n_decoded for one in missing) / plan.speed.prefill if plan.speed else None
            line = f"{plan.name}: {sum(one.status is PlanStatus.UP_TO_DATE for one in plan.planned)} up to date, "
            line += f"{len(missing)} to make"
            if missing:
                line += f" ({counted(n_tokens, 'token')}"
                line += f", about {human_bytes(n_bytes)}" if n_bytes else ""
                line += f", about {human_seconds(seconds)})" if seconds is not None else "; time not measured yet)"
            names = [[one.skill.name for one in plan.planned if one.status is status] for status in PlanStatus]
            self.report.tell(
                line,
                "plan",
                model=plan.name,
                up_to_date=names[0],
                missing=names[1],
                impossible=names[2],
                n_tokens=n_tokens,
                bytes=n_bytes,
                seconds=seconds,
            )
            for one in plan.planned:
                if one.status is PlanStatus.IMPOSSIBLE:
                    self._fail(plan.name, one.skill.name, one.problem)
                elif one.existing is not None:
                    self._add(plan.name, one.existing)
        self._check_disk([one for plan in plans for one in plan.missing])

    def _check_disk(self, missing: Sequence[PlannedSkill]) -> None:
        needed = sum(one.n_bytes for one in missing)
        folder = artifact_store(self.options).directory.parent
        free = shutil.disk_usage(folder).free
        if needed and needed + _DISK_MARGIN > free:
            raise DiskFullError(
                f"The artifacts would take about {human_bytes(needed)}, but {folder} has {human_bytes(free)} free. "
                "Make room with 'kvnotes skills gc', use --store q8_0 for half the size, or another --cache-dir."
            )

    def _make(self, session: Session, plan: _ModelPlan, force: bool) -> None:
        _heed_interrupt(session)
        missing = plan.missing
        if not missing:
            self._verify(session, plan)
            return
        made: list[CompiledSkill] = []
        done: dict[str, int] = {}

        def advance(one: PlannedSkill, n_tokens: int) -> None:
            if session.interrupted.is_set():
                session.engine.cancel()  # Ctrl-C may have come just before the engine began, which forgets it
            done[one.skill.name] = n_tokens
            self.report.advance(plan.name, one.skill.name, n_tokens, one.n_tokens, sum(done.values()))

        def finished(one: PlannedSkill, outcome: Outcome) -> None:
            done[one.skill.name] = one.n_tokens
            if isinstance(outcome, CompiledSkill):
                made.append(outcome)
                self._add(plan.name, outcome)
            elif outcome is None:
                self._add(plan.name, session.compiler.find(one.skill), "another process has made it")
            else:
                self._fail(plan.name, one.skill.name, str(outcome))

        self.report.begin(plan.name, sum(one.n_tokens for one in missing))
        try:
            cost = make_missing(
                session.engine, session.compiler, missing, force=force, progress=advance, finished=finished
            )
        finally:
            self.report.end()
        _heed_interrupt(session)
        self._sum_up(session, plan, cost, made)
        self._verify(session, plan)
        _heed_interrupt(session)

    def _verify(self, session: Session, plan: _ModelPlan) -> None:
        """Measure what has no verdict yet, if that was asked for; a verdict is kept with the artifact's key."""
        if not self.verify or session.engine.info.model_class is not ModelClass.SPLICE:
            return
        from kvnotes_local.evaluation.verification import verify_skill

        for one in plan.planned:
            _heed_interrupt(session)
            found = session.compiler.find(one.skill) if one.task is not None else None
            if found is None:
                continue
            verdict = found.verdict
            if verdict is None:
                self.output.note(f"{one.skill.name}: measuring splicing against reading …")
                result = verify_skill(
                    session.engine, session.compiler, one.skill, session.verdicts, other=session.open_other
                )
                verdict = result.verdict(session.engine.info)
            if verdict.outcome is not VerdictOutcome.PASSED:
                self.gates_failed.append(f"{one.skill.name} ({plan.name})")
            self.report.tell(
                f"{one.skill.name}: gate {verdict.outcome.value}, seam of {verdict.repair_tokens}, "
                f"KL {verdict.kl_mean:.4f} (noise {verdict.noise_kl_mean:.4f})",
                "verdict",
                model=plan.name,
                skill=one.skill.name,
                verdict=verdict.outcome.value,
                repair_tokens=verdict.repair_tokens,
                kl_mean=verdict.kl_mean,
                noise_kl_mean=verdict.noise_kl_mean,
            )
            self.verdict_entries.append({"skill": one.skill.name, "model": plan.name, "verdict": verdict.outcome.value})

    def _sum_up(self, session: Session, plan: _ModelPlan, cost: BatchCost, made: Sequence[CompiledSkill]) -> None:
        speed = measured_speed(session.engine, cost, made)
        if speed is None or cost.tokens_per_second is None:
            return
        SpeedMemory(cache_directory(self.options)).put(plan.fingerprint, speed)
        own, share = cost.tokens_per_second, cost.share_of_plain
        line = f"{plan.name}: {counted(cost.decoded, 'token')} in {cost.seconds:.1f} s, {own:,.0f} tokens/s"
        if share is not None:
            line += (
                f"; {share:.0%} of llama.cpp's own prefill speed on a sample of {counted(cost.sample_tokens, 'token')}"
            )
        facts: dict[str, Any] = {
            "model": plan.name,
            "model_sha256": plan.fingerprint,
            "n_compiled": len(made),
            "decoded": cost.decoded,
            "seconds": round(cost.seconds, 3),
            "tokens_per_second": round(own, 1),
            "share_of_plain_prefill": round(share, 4) if share is not None else None,
            "sample_tokens": cost.sample_tokens,
            "seconds_in_llama_cpp": round(cost.decode_seconds, 3),
        }
        self.model_entries.append(facts)
        self.report.tell(line, "model", **facts)

    def _add(self, model: str, made: CompiledSkill | None, remark: str = "") -> None:
        if made is None:
            return
        speed = f", {made.prefill_tokens_per_second:,.0f} tokens/s" if made.prefill_tokens_per_second else ""
        line = f"{made.skill.name}: {remark or made.status.value}, {counted(made.n_tokens, 'token')}, {human_bytes(made.n_bytes)}"
        line += f", {made.seconds:.1f} s{speed}" if made.seconds else ""
        self._enter(
            line,
            skill=made.skill.name,
            model=model,
            path=str(made.path),
            n_tokens=made.n_tokens,
            bytes=made.n_bytes,
            seconds=round(made.seconds, 3),
            status=made.status.value,
            problem=None,
        )

    def _fail(self, model: str, skill: str, problem: str) -> None:
        self.output.note(f"{skill or model}: {problem}")
        facts = {
            "skill": skill or None,
            "model": model or None,
            "path": None,
            "n_tokens": 0,
            "bytes": 0,
            "seconds": 0.0,
        }
        self._enter(f"{skill or model}: failed", **facts, status="failed", problem=problem)

    def _enter(self, line: str, **facts: Any) -> None:
        self.entries.append(facts)
        self.report.tell(line, "skill", **facts)

    def _stopped(self) -> str:
        there = sum(entry["status"] != "failed" for entry in self.entries)
        return f"Stopped. {counted(there, 'artifact')} made; run the same command again to make the rest."


def _heed_interrupt(session: Session) -> None:
    """Raise Cancelled where Ctrl-C came while there was nothing to stop."""
    if session.interrupted.is_set():
        raise Cancelled("Stopped.")
