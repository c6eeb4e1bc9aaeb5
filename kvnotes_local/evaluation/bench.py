"""How long it takes until the first token of an answer, by how a skill came into the chat; for skills of several lengths.

Everything runs through notebooks, as users run it, in one process and in random order, each way once for warming up. Times are
medians in milliseconds of wall time, from the request to the first token of the answer to a short question.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from kvnotes_local.engine.model_info import ModelClass
from kvnotes_local.engine.protocol import Engine
from kvnotes_local.errors import KvnotesError
from kvnotes_local.evaluation.decision_cases import decision_texts
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.proof import Proof
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
EDIT_LEVELS = (EditLevel.ERRATUM, EditLevel.FIELD, EditLevel.FIELD_ERRATUM, EditLevel.WINDOW, EditLevel.FULL)
QUESTION = "How high is the limit?"
FIELD = "limit"
CHAT = (
    ("Good morning. Today I answer letters from guests.", "Good morning. Send me the letters, one after the other."),
    ("First I will give you the rules of the house.", "Very well. I will answer from them when you ask."),
)
_ROOM = 512

Step = Callable[[str], None]


@dataclass(frozen=True)
class SpliceStages:
    """Where the time of a splice and its question goes, in milliseconds; the stages add up to the time to the first token.

    ``lookup_ms``: skill, artifact and plan are found. ``open_ms``: the artifact is mapped and checked, cells are shared.
    ``seam_ms``: the seam is computed. ``reposition_ms``: rows are turned and converted. ``restore_ms``: they are handed to
    llama.cpp. ``question_ms``: the question is computed. ``rest_ms``: the plan of the question, undo, drawing the first token.
    """

    lookup_ms: float
    open_ms: float
    seam_ms: float
    reposition_ms: float
    restore_ms: float
    question_ms: float
    rest_ms: float

    @property
    def total_ms(self) -> float:
        return float(sum(getattr(self, one.name) for one in fields(self)))


@dataclass(frozen=True)
class BenchRow:
    """One length. Milliseconds to the first token, medians of ``n`` runs, unless said otherwise.

    ``whole_ms``: the whole chat read from nothing. ``recompute_ms``: the chat in place, the skill read. ``prefix_hit_ms``: chat
    and skill in place, which is the limit. ``first_token_ms``: the skill spliced; of that, ``splice_ms`` is for the splice
    (seam included) and ``cold_first_token_ms`` the same with the artifact not in the page cache (None where that cannot be
    arranged). ``speedup``: recompute against splice. ``edit_ms``: a field of the skill changed, by level. ``switch_ms``: coming
    back to a chat that was left, ``fork_ms``: a fork of it; both without a question. ``memcpy_ms``: as many bytes as the chat
    with the skill has, copied. ``stages``: of the splice, medians one by one. ``proof_error``: largest relative
    difference of the time that the answers' proofs claim from the wall clock.
    """

    n_skill_tokens: int
    n_chat_tokens: int
    repair_tokens: int
    n: int
    whole_ms: float
    recompute_ms: float
    prefix_hit_ms: float
    splice_ms: float
    first_token_ms: float
    cold_first_token_ms: float | None
    speedup: float
    edit_ms: dict[str, float]
    switch_ms: float
    fork_ms: float
    memcpy_ms: float
    compile_ms: float
    stages: SpliceStages
    proof_error: float

    @property
    def over_prefix_hit(self) -> float:
        """Time to the first token after a splice, as a multiple of that with everything in place."""
        return self.first_token_ms / self.prefix_hit_ms


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
    fitting = [length for length in sorted(set(lengths)) if 2 * length + _ROOM <= engine.info.n_ctx]
    if not fitting:
        raise KvnotesError(
            f"No length fits twice into the context of {engine.info.n_ctx:,} tokens. Use a larger --n-ctx or --length 256."
        )
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        library, names = _skills(engine, Path(folder) / "skills", fitting)
        compiler = SkillCompiler(engine, ArtifactStore(Path(folder) / "artifacts"))
        return [_Length(engine, library, compiler, name, repair, step).row(repeat, edits, rng) for name in names]


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
        there = chat.fork()
        there.splice(self._name, repair=self._repair)
        there.read()
        ways: dict[str, Callable[[], float]] = {
            "whole": self._whole,
            "recompute": lambda: self._behind(chat, read=True),
            "splice": lambda: self._behind(chat),
            "prefix hit": lambda: self._on(there, lambda twin: None),
            "switch": lambda: self._switch(there),
            "fork": lambda: self._fork(there),
            "memcpy": lambda: self._memcpy(there),
        }
        cold = _can_drop_pages()
        if cold:
            ways["cold splice"] = lambda: self._behind(chat, cold=True)
        for level in EDIT_LEVELS if edits else ():
            ways[f"edit {level.value}"] = lambda level=level: self._on(  # type: ignore[misc]
                there, lambda twin: twin.set(FIELD, "75 euros", level=level)
            )
        self._stages: list[SpliceStages] = []
        self._splices: list[float] = []
        times: dict[str, list[float]] = {name: [] for name in ways}
        for name, way in ways.items():  # warm up
            self._step(f"{self._name}: warming up {name}")
            way()
        self._splices.clear()
        self._stages.clear()
        self._proof_errors.clear()
        order = np.repeat(np.arange(len(ways)), repeat)
        rng.shuffle(order)
        names = list(ways)
        for number, index in enumerate(order.tolist(), 1):
            self._step(f"{self._name}: run {number} of {len(order)}")
            times[names[index]].append(ways[names[index]]())
        n_chat = len(chat.tokens)
        for notebook in (there, chat):
            notebook.close()
        median = {name: float(np.median(values)) for name, values in times.items()}
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
            cold_first_token_ms=median["cold splice"] if cold else None,
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

    def _on(self, notebook: Notebook, change: Callable[[Notebook], object]) -> float:
        twin = notebook.fork()
        try:
            twin.forget_cost()
            began = time.perf_counter()
            change(twin)
            self._ask(twin, began)
            return _since(began)
        finally:
            twin.close()

    def _switch(self, notebook: Notebook) -> float:
        twin = notebook.fork()
        segments = twin.segments
        key = f"bench-{self._name}"
        twin.park(key)
        began = time.perf_counter()
        back, _ = Notebook.resume(self._engine, segments, key, library=self._library, compiler=self._compiler)
        took = _since(began)
        back.close()
        self._engine.discard(key)
        return took

    def _fork(self, notebook: Notebook) -> float:
        began = time.perf_counter()
        twin = notebook.fork()
        took = _since(began)
        twin.close()
        return took

    def _memcpy(self, notebook: Notebook) -> float:
        source = np.ones(len(notebook.tokens) * self._engine.info.kv_bytes_per_token, np.uint8)
        target = np.zeros_like(source)
        began = time.perf_counter()
        np.copyto(target, source)
        return _since(began)

    def _ask(self, notebook: Notebook, began: float) -> Proof:
        reply = notebook.ask(QUESTION, max_tokens=1)
        wall = _since(began)
        self._proof_errors.append(abs(reply.proof.change_ms + reply.proof.ttft_ms - wall) / wall)
        return reply.proof


def _skills(engine: Engine, folder: Path, lengths: Sequence[int]) -> tuple[SkillLibrary, list[str]]:
    """Skills of about these lengths, with a field near the beginning."""
    names = []
    prose = "\n\n".join(text.text for text in decision_texts(long=True))
    words = prose.replace("{{", "").replace("}}", "").replace("|", " ").split(" ")
    for length in lengths:
        head = f"Rules of the house. The limit is {{{{{FIELD}|900 euros}}}} for a night.\n\n"
        wanted = max(1, length - len(engine.tokenize(head)) - 12)
        n_words = max(1, wanted // 2)
        for _ in range(8):  # towards the number of words that makes that many tokens
            body = _repeated(words, n_words)
            n_words = max(1, round(n_words * wanted / max(1, len(engine.tokenize(body)))))
        name = f"bench-{length}"
        target = folder / name
        target.mkdir(parents=True)
        text = f"---\nname: {name}\ndescription: Text for measuring.\n---\n{head}{_repeated(words, n_words)}\n"
        (target / "SKILL.md").write_text(text, "utf-8")
        names.append(name)
    return SkillLibrary([folder]), names


def _repeated(words: Sequence[str], n_words: int) -> str:
    """That many words; each round through the pool is numbered, so that nothing is there twice."""
    parts = []
    for number in range(-(-n_words // len(words))):
        parts.append(f"Part {number + 1}. " + " ".join(words[: n_words - number * len(words)]))
    return "\n\n".join(parts)


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
