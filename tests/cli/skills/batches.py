"""Batches of small skills in processes of their own, to be watched, stopped and killed."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from kvnotes_local.artifacts.artifact import open_artifact
from kvnotes_local.artifacts.tensor_file import TEMPORARY_SUFFIX
from tests.conftest import Run

Kvnotes = Callable[..., Run]


def write_skills(folder: Path, n: int, words: int = 60) -> Path:
    for number in range(n):
        skill = folder / f"skill-{number:02}"
        skill.mkdir(parents=True)
        text = f"Rule {number} of the harbour. " * (words // 5 + number)
        (skill / "SKILL.md").write_text(f"---\nname: skill-{number:02}\ndescription: d\n---\n{text}\n")
    return folder


class Batch:
    """A ``skills compile`` in a process of its own, with a cache of its own."""

    def __init__(self, tmp_path: Path, tiny: Path, n: int, words: int = 60, here: Kvnotes | None = None) -> None:
        self.cache = tmp_path / "cache"
        self.skills = write_skills(tmp_path / "skills", n, words)
        self.names = [f"skill-{number:02}" for number in range(n)]
        self._model = tiny
        self._home = tmp_path / "home"
        self._home.mkdir(exist_ok=True)
        self._here = here

    def start(self, *more: object, limit: int | None = None) -> subprocess.Popen[str]:
        keep = {key: value for key, value in os.environ.items() if not key.startswith("KVNOTES")}
        own = {
            "HOME": str(self._home),
            "KVNOTES_CACHE_DIR": str(self.cache),
            "KVNOTES_DATA_DIR": str(self._home / "data"),
            "KVNOTES_LOG_DIR": str(self._home / "log"),
        }

        def limit_files() -> None:
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        return subprocess.Popen(
            [sys.executable, "-m", "kvnotes_local", *map(str, self._command(*more))],
            env={**keep, **own},
            cwd=self._home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=limit_files,
        )

    def _command(self, *more: object) -> tuple[object, ...]:
        options = ("--skills-dir", self.skills, "--model", self._model, "--threads", 1, "--progress", "json", *more)
        return ("skills", "compile", *self.names, *options)

    def run(self, *more: object, limit: int | None = None) -> Run:
        """Run to the end: in the test's process if it was made with ``here``."""
        if self._here is not None and limit is None:
            return self._here(*self._command(*more))
        process = self.start(*more, limit=limit)
        out, err = process.communicate(timeout=300)
        return Run(process.returncode, out, err)

    def artifacts(self) -> dict[str, Path]:
        """Files by skill; every one of them is whole, or the test fails."""
        found = {}
        for path in self.cache.glob("artifacts/*/*.safetensors"):
            with open_artifact(path) as artifact:  # compares all checksums
                found[artifact.meta.skill] = path
        return found

    def half_written(self) -> list[Path]:
        return list(self.cache.glob(f"artifacts/*/*{TEMPORARY_SUFFIX}"))


def events(lines: str) -> Iterator[dict]:  # type: ignore[type-arg]
    for line in lines.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def wait_for(process: subprocess.Popen[str], word: str) -> str:
    """Read stderr up to a line with the word."""
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return line
    raise AssertionError(f"the process ended without {word!r}")
