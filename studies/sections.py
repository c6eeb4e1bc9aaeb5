"""The sections of a report: what each measures, and how its result is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.errors import KvnotesError
from kvnotes_local.evaluation.bench import run_bench
from kvnotes_local.evaluation.bench_row import BenchRow
from kvnotes_local.evaluation.decision_cases import DecisionText, decision_texts
from kvnotes_local.evaluation.gate import default_seams
from kvnotes_local.evaluation.probe import Probe, decision_probe_cases, probe, summarize
from kvnotes_local.evaluation.questions import bundled_contexts, bundled_questions, skill_questions
from kvnotes_local.evaluation.verification import other_engines
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.evals import load_questions
from kvnotes_local.skills.library import SkillLibrary
from studies.advice import edits_advice, lead_advice, length_advice, scenario_advice, together_advice
from studies.edit_levels import EditOutcome, EditStudy, measure_edits, summarize_edits
from studies.records import Record
from studies.report import (
    NotesStudy,
    edits_table,
    length_table,
    probe_table,
    scenario_table,
    study_table,
    together_table,
)
from studies.scenarios import ScenarioRow, agent, toggle
from studies.skill_study import Study, study_skill, study_together
from studies.skill_ways import lead_ways, seam_ways

T = TypeVar("T")

N_PROBES = 14


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all sections work with. ``folder``: for artifacts of the studies; ``n_trials``: questions that may be asked while
    looking for notes; ``skills``: names, in the order in which they are taken; ``n_domains``: texts with decisions; ``step``:
    is told what is being done."""

    engine: LlamaEngine
    compiler: SkillCompiler
    library: SkillLibrary
    folder: Path
    n_contexts: int
    n_questions: int
    n_positions: int
    n_trials: int
    skills: tuple[str, ...]
    n_domains: int
    step: Callable[[str], None]

    def texts(self, *, long: bool = False) -> tuple[DecisionText, ...]:
        """The bundled decisions, each in both directions."""
        texts = decision_texts(long=long)[: self.n_domains]
        return tuple(one for text in texts for one in (text, text.reversed()))


def leads(bench: Bench) -> Study:
    """Fidelity by seam, lead and rotation."""
    skill = bench.library.get(bench.skills[0])
    compiled = bench.compiler.compile(skill)
    return study_skill(
        bench.engine,
        compiled,
        bundled_contexts(bench.engine)[: bench.n_contexts],
        skill_questions(load_questions(skill), bench.n_questions),
        ways={**seam_ways(bench.engine, compiled, bench.folder), **lead_ways(bench.engine, compiled, bench.folder)},
        seams=(*default_seams(bench.engine.info), 64),
        other=other_engines(bench.engine, bench.folder.parent),
        n_positions=bench.n_positions,
        step=bench.step,
    )


def together(bench: Bench) -> tuple[Study, ...]:
    """1 to 4 skills in one chat."""
    skills = [bench.library.get(name) for name in bench.skills]
    compiled = [bench.compiler.compile(skill) for skill in skills]
    studies = []
    for n in range(1, len(skills) + 1):
        own = [question for skill in skills[:n] for question in skill_questions(load_questions(skill), 2)[:2]]
        if sum(one.n_tokens for one in compiled[:n]) * 2 + 1024 > bench.engine.info.n_ctx:
            break
        studies.append(
            study_together(
                bench.engine,
                compiled[:n],
                bundled_contexts(bench.engine)[: bench.n_contexts],
                [*own, *bundled_questions()[:1]],
                seams=(0, 8, 32),
                other=other_engines(bench.engine, bench.folder.parent),
                n_positions=bench.n_positions,
                step=bench.step,
            )
        )
    return tuple(studies)


def length(bench: Bench) -> tuple[BenchRow, ...]:
    """Time to the first token by length of the skill."""
    return tuple(run_bench(bench.engine, repeat=3, step=bench.step))


def edits(bench: Bench) -> EditStudy:
    """How much of a decision each level of an edit brings round, in texts of about 1,000 tokens."""
    outcomes: list[EditOutcome] = []
    for text in bench.texts(long=True):
        outcomes += measure_edits(bench.engine, text, bench.step)
    return EditStudy(tuple(outcomes), tuple(summarize_edits(outcomes)))


def toggles(bench: Bench, *, apart: bool = False) -> tuple[ScenarioRow, ...]:
    """One field toggled 28 times in one chat."""
    levels = (EditLevel.FIELD_ERRATUM, EditLevel.ERRATUM, EditLevel.FIELD)
    return tuple(toggle(bench.engine, bench.texts()[0], level, apart=apart, tell=bench.step) for level in levels)


def agents(bench: Bench) -> tuple[ScenarioRow, ...]:
    """An agent that takes in a skill, asks, changes fields and asks again."""
    return tuple(agent(bench.engine, bench.texts(), tell=bench.step))


def notes(bench: Bench) -> NotesStudy:
    """Where the notes are: rows swapped between two readings."""
    found: list[Probe] = []
    problems = []
    for case in decision_probe_cases(bench.engine, decision_texts()):
        if len(found) == N_PROBES:
            break
        try:
            found.append(probe(bench.engine, case, max_trials=bench.n_trials, step=bench.step))
        except KvnotesError as error:
            problems.append(str(error))
    if not found:
        raise KvnotesError("In no bundled case does the value move this model's decision.")
    return NotesStudy(tuple(found), summarize(found), tuple(problems))


@dataclass(frozen=True)
class Section(Generic[T]):
    """What is measured, as what it is kept, and how it is shown. ``advice``: what a user should do about it."""

    title: str
    kind: type[Record[T]]
    measure: Callable[[Bench], T]
    table: Callable[[T], str]
    advice: Callable[[T], str] | None = None

    def text(self, record: Record[T]) -> str:
        """The section in Markdown."""
        lines = [f"## {self.title}", "", self.table(record.result), ""]
        if self.advice is not None:
            lines += [f"**What to do:** {self.advice(record.result)}", ""]
        lines += [
            f"<sub>{record.date} · {record.build} · {record.model} · {record.machine} · "
            f"{record.seconds:,} s · `{record.command}`</sub>",
            "",
        ]
        return "\n".join(lines)


SECTIONS: dict[str, Section[Any]] = {
    "leads": Section("Seam, lead and rotation", Record[Study], leads, study_table, lead_advice),
    "together": Section(
        "Several skills in one chat", Record[tuple[Study, ...]], together, together_table, together_advice
    ),
    "length": Section(
        "Time to the first token by length of the skill",
        Record[tuple[BenchRow, ...]],
        length,
        length_table,
        length_advice,
    ),
    "edits": Section("Levels of an edit", Record[EditStudy], edits, edits_table, edits_advice),
    "toggles": Section(
        "One field toggled 28 times", Record[tuple[ScenarioRow, ...]], toggles, scenario_table, scenario_advice
    ),
    "toggles-apart": Section(
        "One field toggled 28 times, each question taken back",
        Record[tuple[ScenarioRow, ...]],
        partial(toggles, apart=True),
        scenario_table,
        scenario_advice,
    ),
    "agent": Section(
        "Skills taken in and edited", Record[tuple[ScenarioRow, ...]], agents, scenario_table, scenario_advice
    ),
    "notes": Section("Where the notes are", Record[NotesStudy], notes, probe_table),
}
