"""What a batch has done so far: told as it happens, summed up at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvnotes_local.session.quantities import human_bytes, human_seconds
from kvnotes_local.skills.batch import PlannedSkill, PlanStatus
from kvnotes_local.skills.compiler import CompiledSkill, CompileStatus
from kvnotes_local.skills.library import Problem
from kvnotes_local.skills.speeds import ModelSpeed
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from kvnotes_local.cli.skills.batch_report import BatchReport


@dataclass
class ModelPlan:
    """What a model has and lacks. ``name`` is that of the model once it was loaded, before that what the user typed."""

    name: str
    fingerprint: str = ""
    planned: tuple[PlannedSkill, ...] = ()
    speed: ModelSpeed | None = None
    problem: str = ""

    @property
    def missing(self) -> list[PlannedSkill]:
        return [one for one in self.planned if one.status is PlanStatus.MISSING]


@dataclass(frozen=True)
class _Cost:
    """What is to be made. ``seconds``: None where the speed of a model is not known."""

    n: int
    n_tokens: int
    n_bytes: int
    seconds: float | None

    @classmethod
    def of(cls, plans: Sequence[ModelPlan]) -> _Cost:
        missing = [one for plan in plans for one in plan.missing]
        times = [
            sum(one.n_decoded for one in plan.missing) / plan.speed.prefill if plan.speed else None
            for plan in plans
            if plan.missing or (plan.speed and len(plans) == 1)
        ]
        seconds = None if None in times or not times else sum(one for one in times if one is not None)
        return cls(len(missing), sum(one.n_tokens for one in missing), sum(one.n_bytes for one in missing), seconds)

    def __str__(self) -> str:
        if not self.n:
            return "0 to make"
        size = f", about {human_bytes(self.n_bytes)}" if self.n_bytes else ""
        time = "; time not measured yet" if self.seconds is None else f", about {human_seconds(self.seconds)}"
        return f"{self.n} to make ({counted(self.n_tokens, 'token')}{size}{time})"


class BatchRecord:
    """Entries of one run, as ``--json`` prints them, each told to the report once.

    ``artifacts``: made, up to date and failed. ``gates_failed``: skills that shall not be spliced. ``n_missing``: how many were
    planned to be made.
    """

    def __init__(self, report: BatchReport) -> None:
        self._report = report
        self._told: set[tuple[str, str, str]] = set()
        self.begin()

    def begin(self, *, only_news: bool = False) -> None:
        """Start anew. ``only_news``: what is up to date, or fails as it did before, is not told again."""
        self._only_news = only_news
        self.n_missing = 0
        self.artifacts: list[dict[str, Any]] = []
        self.plans: list[dict[str, Any]] = []
        self.models: list[dict[str, Any]] = []
        self.verdicts: list[dict[str, Any]] = []
        self.skipped: tuple[Problem, ...] = ()
        self.gates_failed: list[str] = []

    @property
    def n_all(self) -> int:
        return len(self.artifacts)

    @property
    def failed(self) -> list[str]:
        """What could not be made: skills with their models, or models."""
        return [
            f"{one['skill']} ({one['model']})" if one["skill"] and one["model"] else one["skill"] or one["model"]
            for one in self.artifacts
            if one["status"] == "failed"
        ]

    def document(self) -> dict[str, Any]:
        """The result for machines."""
        return {
            "artifacts": self.artifacts,
            "plans": self.plans,
            "models": self.models,
            "verdicts": self.verdicts,
            "skipped": self.skipped,
        }

    def skip(self, problems: Sequence[Problem]) -> None:
        """What lies in the folders of skills and cannot be used as one."""
        self.skipped = tuple(problems)
        for problem in problems:
            path, message = str(problem.path), problem.message
            if self._is_news("", path, message):
                self._report.note(f"Skipped: {message}", "skipped", path=path, problem=message)

    def plan(self, plan: ModelPlan) -> None:
        """What will be made for a model."""
        cost = _Cost.of([plan])
        line = f"{plan.name}: {sum(one.status is PlanStatus.UP_TO_DATE for one in plan.planned)} up to date, {cost}"
        impossible = [one.skill.name for one in plan.planned if one.status is PlanStatus.IMPOSSIBLE]
        line += f", cannot be made: {', '.join(impossible)}" if impossible else ""
        names = [[one.skill.name for one in plan.planned if one.status is status] for status in PlanStatus]
        facts: dict[str, Any] = {
            "model": plan.name,
            "up_to_date": names[0],
            "missing": names[1],
            "impossible": impossible,
            "n_tokens": cost.n_tokens,
            "bytes": cost.n_bytes,
            "seconds": cost.seconds,
        }
        self.plans.append(facts)
        self._report.tell(line, "plan", **facts)

    def total(self, plans: Sequence[ModelPlan]) -> None:
        """What will be made for all models together."""
        cost = _Cost.of(plans)
        facts = {"missing": cost.n, "n_tokens": cost.n_tokens, "bytes": cost.n_bytes, "seconds": cost.seconds}
        self._report.tell(f"All models: {cost}", "total", **facts)

    def add(self, model: str, made: CompiledSkill | None, remark: str = "") -> None:
        """An artifact that was made, or is there."""
        if made is None:
            return
        speed = f", {made.prefill_tokens_per_second:,.0f} tokens/s" if made.prefill_tokens_per_second else ""
        line = f"{made.skill.name}: {remark or made.status.value}, {counted(made.n_tokens, 'token')}, {human_bytes(made.n_bytes)}"
        line += f", {made.seconds:.1f} s{speed}" if made.seconds else ""
        facts = {
            "skill": made.skill.name,
            "model": model,
            "path": str(made.path),
            "n_tokens": made.n_tokens,
            "bytes": made.n_bytes,
            "seconds": round(made.seconds, 3),
            "status": made.status.value,
            "problem": None,
        }
        self.artifacts.append(facts)
        if not self._only_news or made.status is CompileStatus.COMPILED:
            self._report.tell(line, "skill", **facts)

    def use(self, model: str, made: CompiledSkill) -> None:
        """Another artifact took the place of the one that was told."""
        for entry in self.artifacts:
            if (entry["skill"], entry["model"]) == (made.skill.name, model):
                entry |= {"path": str(made.path), "bytes": made.n_bytes}

    def fail(self, model: str, skill: str, problem: str) -> None:
        """A skill that could not be made, or with an empty name a model for which none could."""
        facts = {
            "skill": skill or None,
            "model": model or None,
            "path": None,
            "n_tokens": 0,
            "bytes": 0,
            "seconds": 0.0,
            "status": "failed",
            "problem": problem,
        }
        self.artifacts.append(facts)
        if self._is_news(model, skill, problem):
            self._report.note(f"{skill or model}: {problem}", "skill", **facts)

    def _is_news(self, model: str, skill: str, problem: str) -> bool:
        known = (model, skill, problem) in self._told
        self._told.add((model, skill, problem))
        return not (known and self._only_news)

    @property
    def n_made(self) -> int:
        return sum(entry["status"] == CompileStatus.COMPILED.value for entry in self.artifacts)

    def so_far(self) -> str:
        """What a batch that was stopped has done, and how to go on."""
        if not self.n_missing:
            return "Nothing was made yet; run the same command again."
        missing = self.n_missing - self.n_made
        rest = "go on" if missing <= 0 else "make the rest"
        return (
            f"{counted(self.n_made, 'artifact')} made, {max(0, missing)} missing; run the same command again to {rest}."
        )
