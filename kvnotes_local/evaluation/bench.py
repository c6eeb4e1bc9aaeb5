"""How long it takes until the first token of an answer, by how a skill came into the chat; for skills of several lengths.

Everything runs through notebooks, as users run it, in one process and in random order, each way once for warming up. Times are
medians in milliseconds of wall time, from the request to the first token of the answer to a short question.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from kvnotes_local.contract.model_info import ModelClass
from kvnotes_local.contract.protocol import Engine
from kvnotes_local.errors import KvnotesError
from kvnotes_local.evaluation.bench_row import BenchRow, SpliceStages
from kvnotes_local.evaluation.bench_skills import FIELD, bench_skills
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.proof import Proof
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
EDIT_LEVELS = (EditLevel.ERRATUM, EditLevel.FIELD, EditLevel.FIELD_ERRATUM, EditLevel.WINDOW, EditLevel.FULL)
QUESTION = (
    "How high is the limit? Say it in one short sentence, and name the rule of the house that it rests on, so that I can "
    "look it up again."
)
CHAT = (
    ("Good morning. Today I answer letters from guests.", "Good morning. Send me the letters, one after the other."),
    ("First I will give you the rules of the house.", "Very well. I will answer from them when you ask."),
)
_ROOM = 512

Step = Callable[[str], None]


def run_bench(
    engine: Engine,
    *,
    lengths: Sequence[int] = LENGTHS,
    repeat: int = 5,
    repair: int | None = None,
    edits: bool = True,
    seed: int = 0,
    step: Step = lambda what: None,
) -> list[BenchRow]:
    """A row for each length that fits twice into the context. ``repair``: seam, None for the usual one.

    Raises KvnotesError for a model that does not splice, or where no length fits.
    """
    if engine.info.model_class is not ModelClass.SPLICE:
        raise KvnotesError(f"There is nothing to compare for {engine.info.name}: {engine.info.class_reason}.")
    fitting = [length for length in sorted(set(lengths)) if length <= longest_length(engine.info.n_ctx)]
    if not fitting:
        raise KvnotesError(
            f"No length fits twice into the context of {engine.info.n_ctx:,} tokens. Use a larger --n-ctx or --length 256."
        )
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        library, names = bench_skills(engine, Path(folder) / "skills", fitting)
        compiler = SkillCompiler(engine, ArtifactStore(Path(folder) / "artifacts"))
        return [_Length(engine, library, compiler, name, repair, step).row(repeat, edits, rng) for name in names]


def longest_length(n_ctx: int) -> int:
    """Tokens of the longest skill that fits twice, with its chat, into a context of ``n_ctx`` tokens."""
    return (n_ctx - _ROOM) // 2


class _Length:
    """All ways for one skill."""

    def __init__(
        self,
        engine: Engine,
        library: SkillLibrary,
        compiler: SkillCompiler,
        name: str,
        repair: int | None,
        step: Step,
    ) -> None:
        self._engine, self._library, self._compiler, self._step = engine, library, compiler, step
        self._name = name
        step(f"{name}: compiling")
        self._compiled = compiler.compile(library.get(name))
        self._repair = self._compiled.repair_tokens if repair is None else repair
        self._proof_errors: list[float] = []

    def row(self, repeat: int, edits: bool, rng: np.random.Generator) -> BenchRow:
        chat = self._chat()
        chat.read()
        ways = self._ways(chat, edits)
        self._stages: list[SpliceStages] = []
        self._splices: list[float] = []
        for name, way in ways.items():
            self._step(f"{self._name}: warming up {name}")
            way()
        self._splices.clear()
        self._stages.clear()
        self._proof_errors.clear()
        median = self._medians(ways, repeat, rng)
        n_chat = len(chat.tokens)
        chat.close()
        return BenchRow(
            n_skill_tokens=self._compiled.n_tokens,
            n_chat_tokens=n_chat,
            repair_tokens=self._repair,
            n=repeat,
            whole_ms=median["whole"],
            recompute_ms=median["recompute"],
            prefix_hit_ms=median["prefix hit"],
            splice_ms=float(np.median(self._splices)),
            first_token_ms=median["splice"],
            cold_first_token_ms=median.get("cold splice"),
            speedup=median["recompute"] / median["splice"],
            edit_ms={level.value: median[f"edit {level.value}"] for level in EDIT_LEVELS if edits},
            switch_ms=median["switch"],
            fork_ms=median["fork"],
            memcpy_ms=median["memcpy"],
            compile_ms=self._compiled.seconds * 1e3,
            stages=SpliceStages(
                **{
                    one.name: float(np.median([getattr(run, one.name) for run in self._stages]))
                    for one in fields(SpliceStages)
                }
            ),
            proof_error=max(self._proof_errors, default=0.0),
        )

    def _ways(self, chat: Notebook, edits: bool) -> dict[str, Callable[[], float]]:
        """What is timed, by name; each gives milliseconds."""
        ways: dict[str, Callable[[], float]] = {
            "whole": self._whole,
            "recompute": lambda: self._behind(chat, read=True),
            "splice": lambda: self._behind(chat),
            "prefix hit": lambda: self._in_place(chat, lambda twin: None),
            "switch": lambda: self._switch(chat),
            "fork": lambda: self._fork(chat),
            "memcpy": lambda: self._memcpy(chat),
        }
        if _can_drop_pages():
            ways["cold splice"] = lambda: self._behind(chat, cold=True)
        for level in EDIT_LEVELS if edits else ():
            ways[f"edit {level.value}"] = lambda level=level: self._in_place(  # type: ignore[misc]
                chat, lambda twin: twin.set(FIELD, "75 euros", level=level)
            )
        return ways

    def _medians(
        self, ways: Mapping[str, Callable[[], float]], repeat: int, rng: np.random.Generator
    ) -> dict[str, float]:
        """The median of ``repeat`` runs of each way, all in random order."""
        times: dict[str, list[float]] = {name: [] for name in ways}
        names = list(ways)
        order = np.repeat(np.arange(len(ways)), repeat)
        rng.shuffle(order)
        for number, index in enumerate(order.tolist(), 1):
            self._step(f"{self._name}: run {number} of {len(order)}")
            times[names[index]].append(ways[names[index]]())
        return {name: float(np.median(values)) for name, values in times.items()}

    def _chat(self) -> Notebook:
        notebook = Notebook(self._engine, library=self._library, compiler=self._compiler)
        for user, assistant in CHAT:
            notebook.say(user, assistant)
        return notebook

    def _whole(self) -> float:
        notebook = self._chat()
        try:
            began = time.perf_counter()
            notebook.splice(self._name, read=True)
            self._ask(notebook, began)
            return _since(began)
        finally:
            notebook.close()

    def _behind(self, chat: Notebook, *, read: bool = False, cold: bool = False) -> float:
        if cold:
            _drop_pages(self._compiled.path)
        twin = chat.fork()
        try:
            twin.forget_cost()
            began = time.perf_counter()
            twin.splice(self._name, read=read, repair=self._repair)
            spliced = _since(began)
            change = twin.cost
            proof = self._ask(twin, began)
            total = _since(began)
            if not read and not cold:
                self._splices.append(spliced)
                question = proof.decode_ms - change.decode_ms
                self._stages.append(
                    SpliceStages(
                        lookup_ms=spliced - change.change_ms,
                        open_ms=change.change_ms - change.decode_ms - change.reposition_ms - change.restore_ms,
                        seam_ms=change.decode_ms,
                        reposition_ms=change.reposition_ms,
                        restore_ms=change.restore_ms,
                        question_ms=question,
                        rest_ms=total - spliced - question,
                    )
                )
            return total
        finally:
            twin.close()

    def _with_skill(self, chat: Notebook) -> Notebook:
        """A chat with the skill in place, made anew for each run: what else lies in the context slows every decode, and has to be
        the same for all ways."""
        twin = chat.fork()
        twin.splice(self._name, repair=self._repair)
        twin.read()
        twin.forget_cost()
        return twin

    def _in_place(self, chat: Notebook, change: Callable[[Notebook], object]) -> float:
        twin = self._with_skill(chat)
        try:
            began = time.perf_counter()
            change(twin)
            self._ask(twin, began)
            return _since(began)
        finally:
            twin.close()

    def _switch(self, chat: Notebook) -> float:
        twin = self._with_skill(chat)
        segments = twin.segments
        key = f"bench-{self._name}"
        twin.park(key)
        began = time.perf_counter()
        back, _ = Notebook.resume(self._engine, segments, key, library=self._library, compiler=self._compiler)
        took = _since(began)
        back.close()
        self._engine.discard(key)
        return took

    def _fork(self, chat: Notebook) -> float:
        with_skill = self._with_skill(chat)
        began = time.perf_counter()
        twin = with_skill.fork()
        took = _since(began)
        twin.close()
        with_skill.close()
        return took

    def _memcpy(self, chat: Notebook) -> float:
        n_tokens = len(chat.tokens) + self._compiled.n_tokens
        source = np.ones(n_tokens * self._engine.info.kv_bytes_per_token, np.uint8)
        target = np.zeros_like(source)
        began = time.perf_counter()
        np.copyto(target, source)
        return _since(began)

    def _ask(self, notebook: Notebook, began: float) -> Proof:
        reply = notebook.ask(QUESTION, max_tokens=1)
        wall = _since(began)
        self._proof_errors.append(abs(reply.proof.change_ms + reply.proof.ttft_ms - wall) / wall)
        return reply.proof


def _since(began: float) -> float:
    return (time.perf_counter() - began) * 1e3


def _can_drop_pages() -> bool:
    return hasattr(os, "posix_fadvise")


def _drop_pages(path: Path) -> None:
    """Ask the system to forget the file's pages, so that the next reader has to go to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
