"""The paper's tables on this machine, for one model: one Markdown report.

    python scripts/paper_tables.py --model MODEL.gguf --out docs/reports/NAME.md

Each section is measured by itself and kept as JSON in ``--work``, so a run that was stopped goes on where it was; ``--only``
names sections, and the report has those that are there. On a small machine the whole of it takes hours for a model of 1.5B.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.errors import Cancelled, KvnotesError
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary
from studies.machine import machine_name
from studies.records import Record, read_record, write_record
from studies.sections import SECTIONS, Bench

SKILLS = ("night-clerk", "release-checklist", "harbor-lore", "python-style")
"""Short ones first: with several skills, as many of them as fit are taken in this order."""


def say(what: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


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
            date = read_record(kept, SECTIONS[name].kind).date
            say(f"{name}: kept from {date}; delete {kept} to measure it again")
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
            engine=engine,
            compiler=SkillCompiler(engine, ArtifactStore(arguments.work / "artifacts")),
            library=SkillLibrary.default(arguments.skills_dir),
            folder=folder,
            n_contexts=arguments.contexts,
            n_questions=arguments.questions,
            n_positions=arguments.positions,
            n_trials=arguments.trials,
            skills=tuple(arguments.skill or SKILLS),
            n_domains=arguments.domains,
            step=say,
        )
        for name in names:
            say(f"section {name}")
            began = time.perf_counter()
            try:
                result = SECTIONS[name].measure(bench)
            except Cancelled:
                raise
            except KvnotesError as error:
                say(f"{name}: {error}")
                failed.append(name)
                continue
            record: Record[Any] = Record(
                date=datetime.now(UTC).isoformat(timespec="minutes"),
                seconds=round(time.perf_counter() - began),
                build=f"llama-cpp-python {engine.info.llama_cpp_version}",
                model=engine.info.description,
                machine=machine_name(),
                command=command(arguments, name),
                result=result,
            )
            write_record(work / f"{name}.json", record)
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
        if path.exists():
            lines.append(section.text(read_record(path, section.kind)))
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KvnotesError as error:
        sys.exit(f"paper_tables.py: {error}")
    except KeyboardInterrupt:
        sys.exit("paper_tables.py: stopped; sections that were measured are kept, and the same command goes on.")
