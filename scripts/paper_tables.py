"""The paper's tables on this machine, for one model: one Markdown report.

    python scripts/paper_tables.py --model MODEL.gguf --out docs/reports/NAME.md

Each section is measured by itself and kept as JSON in ``--work``, so a run that was stopped goes on where it was; ``--only``
names sections, and the report has those that are there. On a small machine the whole of it takes hours for a model of 1.5B.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.errors import Cancelled, KvnotesError
from kvnotes_local.evaluation.bench import run_bench
from kvnotes_local.evaluation.decision_cases import DecisionText, decision_texts
from kvnotes_local.evaluation.gate import default_seams
from kvnotes_local.evaluation.probe import decision_probe_cases, probe, summarize
from kvnotes_local.evaluation.questions import bundled_contexts, bundled_questions, skill_questions
from kvnotes_local.evaluation.verification import other_engines
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.evals import load_questions
from kvnotes_local.skills.library import SkillLibrary
from studies.advice import (
    edits_advice,
    lead_advice,
    length_advice,
    scenario_advice,
    together_advice,
)
from studies.edit_levels import EditOutcome, measure_edits, summarize_edits
from studies.machine import machine_name
from studies.report import (
    edits_table,
    length_table,
    probe_table,
    scenario_table,
    study_table,
    together_table,
)
from studies.scenarios import agent, toggle
from studies.skill_study import study_skill, study_together
from studies.skill_ways import lead_ways, seam_ways

N_PROBES = 14
SKILLS = ("night-clerk", "release-checklist", "harbor-lore", "python-style")
"""Short ones first: with several skills, as many of them as fit are taken in this order."""


def say(what: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


@dataclass
class Bench:
    """What all sections work with."""

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

    def texts(self, *, long: bool = False) -> tuple[DecisionText, ...]:
        """The bundled decisions, each in both directions."""
        texts = decision_texts(long=long)[: self.n_domains]
        return tuple(one for text in texts for one in (text, text.reversed()))

    def step(self, what: str) -> None:
        say(what)


def leads(bench: Bench) -> dict[str, Any]:
    """Fidelity by seam, lead and rotation."""
    skill = bench.library.get(bench.skills[0])
    compiled = bench.compiler.compile(skill)
    study = study_skill(
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
    return asdict(study)


def together(bench: Bench) -> list[dict[str, Any]]:
    """1 to 4 skills in one chat."""
    skills = [bench.library.get(name) for name in bench.skills]
    compiled = [bench.compiler.compile(skill) for skill in skills]
    studies = []
    for n in range(1, len(skills) + 1):
        own = [question for skill in skills[:n] for question in skill_questions(load_questions(skill), 2)[:2]]
        if sum(one.n_tokens for one in compiled[:n]) * 2 + 1024 > bench.engine.info.n_ctx:
            break
        studies.append(
            asdict(
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
        )
    return studies


def length(bench: Bench) -> list[dict[str, Any]]:
    """Time to the first token by length of the skill."""
    return [asdict(row) for row in run_bench(bench.engine, repeat=3, step=bench.step)]


def edits(bench: Bench) -> dict[str, Any]:
    """How much of a decision each level of an edit brings round, in texts of about 1,000 tokens."""
    outcomes: list[EditOutcome] = []
    for text in bench.texts(long=True):
        outcomes += measure_edits(bench.engine, text, bench.step)
    return {
        "outcomes": [asdict(one) for one in outcomes],
        "summary": [asdict(row) for row in summarize_edits(outcomes)],
    }


def toggles(bench: Bench, *, apart: bool = False) -> list[dict[str, Any]]:
    """One field toggled 28 times in one chat."""
    levels = (EditLevel.FIELD_ERRATUM, EditLevel.ERRATUM, EditLevel.FIELD)
    return [asdict(toggle(bench.engine, bench.texts()[0], level, apart=apart, tell=bench.step)) for level in levels]


def agents(bench: Bench) -> list[dict[str, Any]]:
    """An agent that takes in a skill, asks, changes fields and asks again."""
    return [asdict(row) for row in agent(bench.engine, bench.texts(), tell=bench.step)]


def notes(bench: Bench) -> dict[str, Any]:
    """Where the notes are: rows swapped between two readings."""
    found, problems = [], []
    for case in decision_probe_cases(bench.engine, decision_texts()):
        if len(found) == N_PROBES:
            break
        try:
            found.append(probe(bench.engine, case, max_trials=bench.n_trials, step=bench.step))
        except KvnotesError as error:
            problems.append(str(error))
    if not found:
        raise KvnotesError("In no bundled case does the value move this model's decision.")
    return {"cases": [asdict(one) for one in found], "summary": asdict(summarize(found)), "problems": problems}


@dataclass(frozen=True)
class Section:
    """What is measured, and how its result is shown. ``advice``: what a user should do about it."""

    title: str
    measure: Callable[[Bench], Any]
    table: Callable[[Any], str]
    advice: Callable[[Any], str] | None = None


SECTIONS = {
    "leads": Section("Seam, lead and rotation", leads, study_table, lead_advice),
    "together": Section("Several skills in one chat", together, together_table, together_advice),
    "length": Section("Time to the first token by length of the skill", length, length_table, length_advice),
    "edits": Section("Levels of an edit", edits, edits_table, edits_advice),
    "toggles": Section("One field toggled 28 times", toggles, scenario_table, scenario_advice),
    "toggles-apart": Section(
        "One field toggled 28 times, each question taken back",
        partial(toggles, apart=True),
        scenario_table,
        scenario_advice,
    ),
    "agent": Section("Skills taken in and edited", agents, scenario_table, scenario_advice),
    "notes": Section("Where the notes are", notes, probe_table),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the Markdown report")
    parser.add_argument("--work", type=Path, default=Path("paper-tables"), help="results by section, artifacts")
    parser.add_argument("--kv-type", default="f16", choices=["f16", "q8_0"])
    parser.add_argument("--only", action="append", choices=SECTIONS, help="measure these sections only; repeatable")
    parser.add_argument("--n-ctx", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--contexts", type=int, default=3, help="kinds of chats, 1 to 3")
    parser.add_argument("--questions", type=int, default=4, help="questions of each skill")
    parser.add_argument("--positions", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--trials", type=int, default=160, help="questions to ask while looking for notes")
    parser.add_argument("--domains", type=int, default=10, help="texts with decisions, each in both directions")
    parser.add_argument("--skill", action="append", help="skills in the order in which they are taken; repeatable")
    parser.add_argument("--skills-dir", type=Path, action="append", default=[])
    arguments = parser.parse_args(argv)
    work = arguments.work / f"{arguments.model.stem}-{arguments.kv_type}"
    work.mkdir(parents=True, exist_ok=True)
    missing = []
    for name in arguments.only or list(SECTIONS):
        kept = work / f"{name}.json"
        if kept.exists():
            say(f"{name}: kept from {json.loads(kept.read_text('utf-8'))['date']}; delete {kept} to measure it again")
        else:
            missing.append(name)
    failed = measure(arguments, work, missing) if missing else []
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.out, report(arguments, work))
    say(f"{arguments.out} was written" + (f", without {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def measure(arguments: argparse.Namespace, work: Path, names: list[str]) -> list[str]:
    """Measures and keeps sections. Returns those that failed, whose reasons were said."""
    failed = []
    kv_type = GGMLType[arguments.kv_type.upper()]
    params = EngineParams(n_ctx=arguments.n_ctx, type_k=kv_type, type_v=kv_type, n_threads=arguments.threads)
    folder = work / "artifacts"
    folder.mkdir(exist_ok=True)
    with LlamaEngine(arguments.model, params, cache_dir=arguments.work) as engine:
        bench = Bench(
            engine,
            SkillCompiler(engine, ArtifactStore(arguments.work / "artifacts")),
            SkillLibrary.default(arguments.skills_dir),
            folder,
            arguments.contexts,
            arguments.questions,
            arguments.positions,
            arguments.trials,
            tuple(arguments.skill or SKILLS),
            arguments.domains,
        )
        for name in names:
            bench.step(f"section {name}")
            began = time.perf_counter()
            try:
                result = SECTIONS[name].measure(bench)
            except Cancelled:
                raise
            except KvnotesError as error:
                say(f"{name}: {error}")
                failed.append(name)
                continue
            record = {
                "date": datetime.now(UTC).isoformat(timespec="minutes"),
                "seconds": round(time.perf_counter() - began),
                "build": f"llama-cpp-python {engine.info.llama_cpp_version}",
                "model": engine.info.description,
                "machine": machine_name(),
                "command": command(arguments, name),
                "result": result,
            }
            write_atomically(work / f"{name}.json", json.dumps(record, indent=1, default=_plain))
    return failed


def command(arguments: argparse.Namespace, name: str) -> str:
    """What to type for the same section; places of this machine left out."""
    return (
        f"python scripts/paper_tables.py --model {arguments.model.name} --kv-type {arguments.kv_type} --only {name} "
        f"--n-ctx {arguments.n_ctx} --threads {arguments.threads} --contexts {arguments.contexts} "
        f"--questions {arguments.questions} --positions {arguments.positions} "
        f"--trials {arguments.trials} --domains {arguments.domains}"
        + "".join(f" --skill {skill}" for skill in arguments.skill or [])
    )


def report(arguments: argparse.Namespace, work: Path) -> str:
    lines = [f"# {arguments.model.stem}, {arguments.kv_type} KV", ""]
    for name, section in SECTIONS.items():
        path = work / f"{name}.json"
        if not path.exists():
            continue
        record = json.loads(path.read_text("utf-8"))
        lines += [f"## {section.title}", "", section.table(record["result"]), ""]
        if section.advice is not None:
            lines += [f"**What to do:** {section.advice(record['result'])}", ""]
        lines += [
            f"<sub>{record['date']} · {record['build']} · {record['model']} · {record['machine']} · "
            f"{record['seconds']:,} s · `{record['command']}`</sub>",
            "",
        ]
    return "\n".join(lines)


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KvnotesError as error:
        sys.exit(f"paper_tables.py: {error}")
    except KeyboardInterrupt:
        sys.exit("paper_tables.py: stopped; sections that were measured are kept, and the same command goes on.")
