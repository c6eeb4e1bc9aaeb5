"""One run of ``skills compile``: plan for every model, look whether the disk has room, make what is missing, sum up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kvnotes_local.cli.output import Output
from kvnotes_local.cli.session import open_session
from kvnotes_local.cli.skills.batch_record import BatchRecord, ModelPlan
from kvnotes_local.cli.skills.batch_room import check_room
from kvnotes_local.cli.skills.batch_wanted import Wanted
from kvnotes_local.contract.model_info import ModelClass
from kvnotes_local.contract.store_type import StoreType
from kvnotes_local.errors import Cancelled, DiskFullError, KvnotesError
from kvnotes_local.models.memory import available_memory
from kvnotes_local.session.engine_options import EngineOptions
from kvnotes_local.session.opening import chosen_model
from kvnotes_local.session.places import Places
from kvnotes_local.session.session import Session
from kvnotes_local.skills.batch import (
    Outcome,
    PlannedSkill,
    PlanStatus,
    make_missing,
    measured_speed,
    plan_skills,
)
from kvnotes_local.skills.compiler import CompiledSkill
from kvnotes_local.skills.skill import Skill
from kvnotes_local.skills.speeds import SpeedMemory
from kvnotes_local.skills.verdicts import Outcome as VerdictOutcome
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from kvnotes_local.cli.skills.batch_report import BatchReport
    from kvnotes_local.contract.compile_job import BatchCost


_CONTEXT_BYTES = 1 << 30
"""Room that is left for a model's context and buffers, beside its weights."""


@dataclass(frozen=True)
class _Opened:
    """A model with its plan. ``session`` gives the one that it was planned with, or loads it again where that was closed."""

    plan: ModelPlan
    session: Callable[[], AbstractContextManager[Session]]
    close: Callable[[], None] = lambda: None


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

    def __post_init__(self) -> None:
        self.record = BatchRecord(self.report)

    def go(self, *, force: bool = False, only_plan: bool = False, only_news: bool = False) -> None:
        """Plan and make. Failures of skills and models are noted and counted. ``only_news``: what was up to date or failed
        before is not told again.

        Raises KvnotesError for what stops all, Cancelled with a message that says how to go on."""
        self.record.begin(only_news=only_news)
        found = self.wanted.find()
        self.record.skip(found.skipped)
        try:
            if len(self.models) == 1:
                with self._session(self.models[0]) as session:
                    plan = self._plan(session, found.skills, force)
                    self._tell_plans([plan], found.broken, only_plan)
                    if not only_plan:
                        self._make(session, plan, force)
                return
            with ExitStack() as all_sessions:
                opened = self._plan_all(found.skills, force, all_sessions)
                self._tell_plans([one.plan for one in opened], found.broken, only_plan)
                if only_plan:
                    return
                for one in opened:
                    if one.plan.missing or (self.verify and not one.plan.problem):
                        with one.session() as session:
                            self._make(session, one.plan, force)
                    one.close()
        except Cancelled as error:
            raise Cancelled(f"Stopped. {self.record.so_far()}") from error
        except DiskFullError as error:
            raise DiskFullError(f"{error}. {self.record.so_far()}" if self.record.n_made else str(error)) from error

    def _plan_all(self, skills: Sequence[Skill], force: bool, all_sessions: ExitStack) -> list[_Opened]:
        """Plans for all models, in their order. Each model is loaded once, if they fit into the memory together: the last one
        first, since what is opened last has to be closed first."""
        models = self._different_models()
        opened: list[_Opened] = []
        for index in reversed(range(len(models))):
            model, _ = models[index]
            keep = all_sessions.enter_context(ExitStack())
            try:
                session = keep.enter_context(self._session(model))
                plan = self._plan(session, skills, force)
            except Cancelled:
                raise
            except KvnotesError as error:
                keep.close()
                opened.append(_Opened(ModelPlan(str(model), problem=str(error)), partial(self._session, model)))
                continue
            one = _Opened(plan, partial(self._session, model))
            if sum(n_bytes + _CONTEXT_BYTES for _, n_bytes in models[:index]) <= available_memory():
                one = _Opened(plan, partial(_kept, session), keep.close)
            else:
                keep.close()
            opened.append(one)
        return opened[::-1]

    def _different_models(self) -> list[tuple[str | None, int]]:
        """Models with their sizes; one that was given twice, as a name and as a file, is there once."""
        names: dict[str, str] = {}
        different: list[tuple[str | None, int]] = []
        for model in self.models:
            n_bytes = 0
            try:
                found = chosen_model(replace(self.options, model=model))
                n_bytes = found.n_bytes
                fingerprint = self._places.fingerprint(found.path)
            except KvnotesError:  # is told when it is to be loaded
                different.append((model, n_bytes))
                continue
            if fingerprint in names:
                self.report.note(f"{model} is the same model as {names[fingerprint]}; it is served once.", "note")
                continue
            names[fingerprint] = found.name
            different.append((model, n_bytes))
        return different

    @property
    def _places(self) -> Places:
        return Places.usual(cache=self.options.cache_dir)

    def _session(self, model: str | None) -> Any:
        return open_session(
            replace(self.options, model=model), self.output, skills_dirs=self.wanted.skills_dirs, store_type=self.store
        )

    def _plan(self, session: Session, skills: Sequence[Skill], force: bool) -> ModelPlan:
        info = session.engine.info
        return ModelPlan(
            info.name,
            info.fingerprint,
            plan_skills(session.engine, session.compiler, skills, force=force),
            SpeedMemory(self._places.cache).get(info.fingerprint),
        )

    def _tell_plans(self, plans: Sequence[ModelPlan], broken: Sequence[tuple[str, str]], only_plan: bool) -> None:
        for name, problem in broken:
            self.record.fail("", name, problem)
        for plan in plans:
            if plan.problem:
                self.record.fail(plan.name, "", plan.problem)
                continue
            self.record.plan(plan)
            for one in plan.planned:
                if one.status is PlanStatus.IMPOSSIBLE:
                    self.record.fail(plan.name, one.skill.name, one.problem)
                elif one.existing is not None:
                    self.record.add(plan.name, one.existing)
        if len(plans) > 1:
            self.record.total(plans)
        missing = [one for plan in plans for one in plan.missing]
        self.record.n_missing = len(missing)
        store = self._places.artifact_store()
        check_room(store, missing)
        if missing and not only_plan:
            store.check_writable()

    def _make(self, session: Session, plan: ModelPlan, force: bool) -> None:
        _heed_interrupt(session)
        missing = plan.missing
        if not missing:
            self._verify(session, plan)
            return
        made: list[CompiledSkill] = []
        done: dict[str, int] = {}

        def advance(one: PlannedSkill, n_tokens: int) -> None:
            if session.stop.is_set():
                session.engine.cancel()  # Ctrl-C may have come just before the engine began, which forgets it
            done[one.skill.name] = n_tokens
            self.report.advance(plan.name, one.skill.name, n_tokens, one.n_tokens, sum(done.values()))

        def finished(one: PlannedSkill, outcome: Outcome) -> None:
            done[one.skill.name] = one.n_tokens
            if isinstance(outcome, CompiledSkill):
                made.append(outcome)
                self.record.add(plan.name, outcome)
            elif outcome is None:
                self.record.add(plan.name, session.compiler.find(one.skill), "another process has made it")
            else:
                self.record.fail(plan.name, one.skill.name, str(outcome))

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

    def _verify(self, session: Session, plan: ModelPlan) -> None:
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
                self.report.note(f"{one.skill.name}: measuring splicing against reading …", "note")
                result = verify_skill(
                    session.engine, session.compiler, one.skill, session.verdicts, other=session.open_other
                )
                verdict = result.verdict(session.engine.info)
                if (used := session.compiler.find(one.skill)) is not None:  # perhaps behind other leads than before
                    self.record.use(plan.name, used)
            if verdict.outcome is not VerdictOutcome.PASSED:
                self.record.gates_failed.append(f"{one.skill.name} ({plan.name})")
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
            self.record.verdicts.append({"skill": one.skill.name, "model": plan.name, "verdict": verdict.outcome.value})

    def _sum_up(self, session: Session, plan: ModelPlan, cost: BatchCost, made: Sequence[CompiledSkill]) -> None:
        speed = measured_speed(session.engine, cost, made)
        if speed is None or cost.tokens_per_second is None:
            return
        SpeedMemory(self._places.cache).put(plan.fingerprint, speed)
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
        self.record.models.append(facts)
        self.report.tell(line, "model", **facts)


def _kept(session: Session) -> AbstractContextManager[Session]:
    return nullcontext(session)


def _heed_interrupt(session: Session) -> None:
    """Raise Cancelled where Ctrl-C came while there was nothing to stop."""
    if session.stop.is_set():
        raise Cancelled("Stopped.")
