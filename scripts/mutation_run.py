#!/usr/bin/env python3
"""Which small changes of the code do the tests notice? Breaks a copy of the checkout on purpose, in one place at a time.

usage: .venv/bin/python scripts/mutation_run.py kv changes store artifacts [--sample N] [--seed S] [--result FILE]

Each mutant meets the test files nearest to its module, and all tests of its room when it survives them. FILE keeps what was
found: a run that was broken off goes on from there, mutants of files that have changed since are forgotten, and --again tests
survivors once more. --list shows the mutants, --table the result as Markdown; neither runs anything. For Linux and macOS.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from _mutations import Mutant, find_mutants

ROOT = Path(__file__).resolve().parent.parent
NOT_COPIED = (".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "*.gguf")
SHARED_IMPORTS = (
    "pytest",
    "numpy",
    "hypothesis",
    "threadpoolctl",
    "gguf",
    "llama_cpp",
    "jinja2",
    "yaml",
    "safetensors",
)
"""Loaded once, before the copies of this process that run the tests. The package under test is not among them."""

MEMORY_BYTES = 12 << 30
"""Address space of a test run: a mutant that asks for more than everything must not take the machine along."""


@dataclass(frozen=True)
class Room:
    """Modules below ``folder`` (or one module), the tests of each by its name, which need no fixtures of others, and all that
    might notice a change of them."""

    folder: str
    near: dict[str, tuple[str, ...]]
    every: tuple[str, ...]

    def modules(self) -> list[Path]:
        path = ROOT / "kvnotes_local" / self.folder
        return [path] if path.is_file() else sorted(p for p in path.rglob("*.py") if p.name != "__init__.py")

    def nearest(self, module: str) -> tuple[str, ...]:
        return self.near.get(Path(module).stem, self.near[""])


def _kv(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/kv/test_kv_{name}.py" for name in names)


ROOMS = {
    "kv": Room(
        "kv",
        {
            "": _kv("state", "rows", "reposition"),
            "angles": _kv("angles", "rotation"),
            **dict.fromkeys(("block_base", "block_floats", "block_linear", "block_nonlinear"), _kv("block_types")),
            "hadamard": _kv("hadamard"),
            **dict.fromkeys(("reposition", "row_jobs", "turning"), _kv("reposition", "rotation")),
            "rotation": _kv("rotation", "reposition"),
            "rotation_json": _kv("rotation"),
            "rows": _kv("rows"),
            "state_scan": _kv("state", "fuzz"),
        },
        ("tests/kv",),
    ),
    "changes": Room("notebook/changes.py", {"": ("tests/notebook/test_changes.py",)}, ("tests/notebook",)),
    "store": Room(
        "notebook/store",
        {"": ("tests/notebook/test_store.py",)},
        ("tests/notebook/test_chats.py", "tests/faults/test_lying_records.py"),
    ),
    "artifacts": Room(
        "artifacts", {"": ("tests/artifacts",)}, ("tests/artifacts", "tests/skills/test_artifact_store.py")
    ),
}


@dataclass(frozen=True)
class Case:
    """A mutant of a module, whose content has the hash ``digest``."""

    room: str
    module: str
    digest: str
    mutant: Mutant

    @property
    def key(self) -> str:
        m = self.mutant
        return f"{self.module}:{m.line}:{m.start}-{m.stop}:{m.operator}:{m.after}"


@dataclass
class Verdict:
    """``outcome``: killed, timeout or survived. ``seconds`` of wall time on a machine that may do other things as well."""

    room: str
    module: str
    digest: str
    line: int
    operator: str
    before: str
    after: str
    outcome: str
    seconds: float


def find_cases(rooms: Sequence[str]) -> list[Case]:
    cases = []
    for room in rooms:
        for path in ROOMS[room].modules():
            source = path.read_text("utf-8")
            digest = hashlib.sha256(source.encode()).hexdigest()[:16]
            cases += [Case(room, path.relative_to(ROOT).as_posix(), digest, m) for m in find_mutants(source)]
    return cases


class Results:
    """What was found so far, in a JSON file. Of the files as they are now: what was found of others is forgotten."""

    def __init__(self, path: Path, now: Sequence[Case]) -> None:
        self._path = path
        stored = json.loads(path.read_text("utf-8"))["mutants"] if path.exists() else {}
        digests = {case.module: case.digest for case in now}
        every = {key: Verdict(**value) for key, value in stored.items()}
        self.verdicts = {key: one for key, one in every.items() if digests.get(one.module, one.digest) == one.digest}

    def add(self, case: Case, outcome: str, seconds: float) -> None:
        m = case.mutant
        self.verdicts[case.key] = Verdict(
            case.room, case.module, case.digest, m.line, m.operator, m.before, m.after, outcome, round(seconds, 1)
        )
        temporary = self._path.with_suffix(".new")
        temporary.write_text(
            json.dumps({"mutants": {k: asdict(v) for k, v in self.verdicts.items()}}, indent=1), "utf-8"
        )
        temporary.replace(self._path)


class Copy:
    """A copy of the checkout, in which tests run in copies of this process: loading pytest and numpy takes longer than most."""

    def __init__(self, folder: Path, limit: float) -> None:
        self._folder = folder / "checkout"
        self._log = folder / "log"
        self._limit = limit
        shutil.copytree(ROOT, self._folder, ignore=shutil.ignore_patterns(*NOT_COPIED))
        for name in SHARED_IMPORTS:
            importlib.import_module(name)

    @contextlib.contextmanager
    def broken(self, case: Case) -> Iterator[None]:
        path = self._folder / case.module
        whole = path.read_text("utf-8")
        try:
            self._write(path, case.mutant.apply(whole))
            yield
        finally:
            self._write(path, whole)

    @staticmethod
    def _write(path: Path, source: str) -> None:
        path.write_text(source, "utf-8")
        # Python tells old bytecode by size and second, and a mutant may have both of the file before it.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()

    def test(self, files: Sequence[str], *, alone: bool) -> str:
        """survived, killed, or timeout. ``alone``: the files use no fixtures of others, so that these need not be loaded."""
        child = os.fork()
        if child == 0:
            self._run_tests([*files, *(["--noconftest"] if alone else [])])
        give_up = time.monotonic() + self._limit
        while time.monotonic() < give_up:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "timeout"

    def _run_tests(self, arguments: Sequence[str]) -> None:
        """In the process of its own, which ends here."""
        code = 99
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(self._folder)
            os.environ["PYTHONPATH"] = str(self._folder)
            sys.path[:] = [str(self._folder), *(p for p in sys.path if Path(p) not in {ROOT, ROOT / "scripts"})]
            import pytest

            code = int(pytest.main(["-x", "-q", "--no-header", "--tb=line", "--hypothesis-seed=0", *arguments]))
        finally:
            sys.stdout.flush()
            os._exit(code)

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", errors="replace")


def run(cases: Sequence[Case], results: Results, limit: float, *, near: bool) -> int:
    """Test the cases. The tests have to pass with the code as it is. ``near``: survivors do not meet all tests of their room."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder), limit)
        runs = {(ROOMS[case.room].nearest(case.module), True) for case in cases}
        runs |= set() if near else {(ROOMS[case.room].every, False) for case in cases}
        for files, alone in sorted(runs):
            if (outcome := copy.test(files, alone=alone)) != "survived":
                print(copy.log[-3000:])
                print(f"{' '.join(files)}: “{outcome}” with nothing changed. Mend the tests, or give a longer --limit.")
                return 1
        for number, case in enumerate(cases, 1):
            began = time.monotonic()
            with copy.broken(case):
                outcome = copy.test(ROOMS[case.room].nearest(case.module), alone=True)
                if outcome == "survived" and not near:
                    outcome = copy.test(ROOMS[case.room].every, alone=False)
            results.add(case, outcome, time.monotonic() - began)
            m = case.mutant
            print(
                f"{number}/{len(cases)} {outcome:8} {case.module}:{m.line} {m.operator}: {m.before!r} → {m.after!r}",
                flush=True,
            )
    return 0


def table(cases: Sequence[Case], results: Results) -> str:
    """How many mutants there are, were tested, and what became of them."""
    there = Counter(case.room for case in cases)
    lines = ["| room | mutants | tested | killed | ran out of time | survived |", "|---|---:|---:|---:|---:|---:|"]
    for room, n_mutants in there.items():
        known = [
            results.verdicts[case.key].outcome for case in cases if case.room == room and case.key in results.verdicts
        ]
        count = Counter(known)
        share = f"{len(known)} ({len(known) / n_mutants:.0%})"
        lines.append(
            f"| {room} | {n_mutants} | {share} | {count['killed']} | {count['timeout']} | {count['survived']} |"
        )
    for key, one in results.verdicts.items():
        if one.outcome == "survived":
            lines.append(f"\n{key}\n    {one.before}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"{', '.join(ROOMS)}; all of them without one")
    parser.add_argument(
        "--sample", type=int, help="test this many, drawn from all; a larger sample holds the smaller one"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--limit", type=float, default=300.0, help="seconds for one test run, then the mutant counts as noticed"
    )
    parser.add_argument("--result", type=Path, default=Path("mutants.json"))
    parser.add_argument("--again", action="store_true", help="test those that survived once more")
    parser.add_argument("--near", action="store_true", help="only the nearest tests: quicker, and more survive")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if unknown := sorted(set(args.rooms) - set(ROOMS)):
        parser.error(f"there is no room {', '.join(unknown)}: give some of {', '.join(ROOMS)}")
    cases = find_cases(args.rooms or list(ROOMS))
    results = Results(args.result, cases)
    if args.table:
        print(table(cases, results))
        return 0
    drawn = list(cases)
    if args.sample is not None:
        random.Random(args.seed).shuffle(drawn)
        drawn = drawn[: args.sample]
    if args.list:
        print("\n".join(case.key for case in drawn))
        return 0

    def is_due(case: Case) -> bool:
        known = results.verdicts.get(case.key)
        return known is None or (args.again and known.outcome == "survived")

    return run([case for case in drawn if is_due(case)], results, args.limit, near=args.near)


if __name__ == "__main__":
    sys.exit(main())
