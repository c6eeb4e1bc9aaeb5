"""A scripted engine without a clock: nothing happens until the test lets it."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.artifacts.meta import ArtifactMeta
from kvnotes_local.artifacts.writer import write_state_artifact
from kvnotes_local.chat_format.format import ChatFormat, FormatSource, Reasoning, SkillPlace, SystemPlace, Trim, Wrapper
from kvnotes_local.contract.compile_job import Compiled, CompileJob
from kvnotes_local.contract.generation import Generation, Sampling, StopReason, TokenEvent
from kvnotes_local.contract.model_info import ModelClass, ModelInfo
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.contract.plan import Applied, Decode, Keep, Part
from kvnotes_local.contract.protocol import Parked, Progress
from kvnotes_local.errors import Cancelled, EngineError

PATIENCE = 30.0
"""Seconds after which a test that waits for nothing fails instead of hanging."""

FORMAT = ChatFormat(
    head="<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n",
    empty_head="<|im_start|>system\n<|im_end|>\n",
    default_system="You are a helpful assistant.",
    system=Wrapper("<|im_start|>system\n", "<|im_end|>\n"),
    system_place=SystemPlace.TURN,
    system_opens_question=False,
    question_open="",
    question_trim=Trim.NONE,
    user=Wrapper("<|im_start|>user\n", "<|im_end|>\n"),
    assistant=Wrapper("<|im_start|>assistant\n", "<|im_end|>\n"),
    generation_open="<|im_start|>assistant\n",
    skill=Wrapper("<|im_start|>system\n", "<|im_end|>\n"),
    skill_place=SkillPlace.SYSTEM_TURN,
    source=FormatSource.TEMPLATE,
    proven=True,
    reasoning=Reasoning("<think>", "</think>", leaves=False),
)


class Gate:
    """Holds work up until the test opens it; a cancelled gate raises."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.reached = threading.Event()
        self.cancelled = False

    def close(self) -> None:
        self._open.clear()
        self.reached.clear()
        self.cancelled = False

    def open(self) -> None:
        self._open.set()

    def cancel(self) -> None:
        if not self._open.is_set():
            self.cancelled = True
            self._open.set()

    def wait(self) -> None:
        self.reached.set()
        if not self._open.wait(PATIENCE):
            raise AssertionError("The gate was never opened.")
        if self.cancelled:
            self.cancelled = False
            raise Cancelled("Stopped.")


@dataclass
class Script:
    """What the engines of one test do. ``say`` lets the model speak; without it, it answers ``answer`` at once.

    Gates are open unless a test closes them. ``fail``: the next ``n_fails`` changes raise this;
    ``load_error``: so does loading.
    """

    answer: str | None = "It is 30 days."
    loading: Gate = field(default_factory=Gate)
    reading: Gate = field(default_factory=Gate)
    compiling: Gate = field(default_factory=Gate)
    fail: Exception | None = None
    n_fails: int = 1
    load_error: Exception | None = None
    spoken: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    opened: list[FakeEngine] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def say(self, *pieces: str) -> None:
        """Let the model speak these tokens."""
        for piece in pieces:
            self.spoken.put(piece)

    def end(self) -> None:
        """Let the model end its answer."""
        self.spoken.put(None)

    def open_engine(
        self, path: Path, params: EngineParams, *, progress: Callable[[float], bool], note: Callable[[str], None]
    ) -> FakeEngine:
        """What the workbench loads models with."""
        if not progress(0.5):
            raise Cancelled("Loading was cancelled.")
        self.loading.wait()
        if not progress(1.0):
            raise Cancelled("Loading was cancelled.")
        if self.load_error is not None:
            raise self.load_error
        if "broken" in path.name:
            raise EngineError(f"llama.cpp could not load {path.name}. Check that the file is complete.")
        engine = FakeEngine(self, path, params)
        self.opened.append(engine)
        return engine


class FakeEngine:
    """Implements ``protocol.Engine``: tokens are words, and every row is the token itself."""

    def __init__(self, script: Script, path: Path, params: EngineParams) -> None:
        self._script = script
        self.params = params
        self._words: list[str] = []
        self._numbers: dict[str, int] = {}
        self._sequences: dict[int, tuple[int, ...]] = {}
        self._artifacts: dict[Path, tuple[int, ...]] = {}
        self._parked: dict[str, tuple[int, ...]] = {}
        self._stop = threading.Event()
        self.closed = False
        self.info = ModelInfo(
            path=path,
            name=path.stem,
            arch="fake",
            description="a model of the tests",
            fingerprint=f"fake-{path.stem}",
            model_class=ModelClass.SPLICE,
            class_reason="keys are a rotation",
            rotation_residual=0.0,
            rotation_fingerprint="r",
            n_params=1,
            n_bytes=1,
            n_ctx=params.n_ctx or 4096,
            n_ctx_train=4096,
            n_swa=0,
            n_vocab=1,
            type_k=params.type_k,
            type_v=params.type_v,
            kv_bytes_per_token=23_040,
            chat_format=FORMAT,
            llama_cpp_version=version("llama-cpp-python"),
            on_gpu=False,
        )

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        tokens = []
        for word in re.findall(r"<\|\w+\|>|\s*\w+|\s*[^\w\s]|\s+", text):
            if word not in self._numbers:
                self._numbers[word] = len(self._words)
                self._words.append(word)
            tokens.append(self._numbers[word])
        return tokens

    def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> str:
        return "".join(self._words[token] for token in tokens)

    def new_sequence(self) -> int:
        seq = next(n for n in range(100) if n not in self._sequences)
        self._sequences[seq] = ()
        return seq

    def free_sequence(self, seq: int) -> None:
        del self._sequences[seq]

    def tokens(self, seq: int) -> tuple[int, ...]:
        return self._sequences[seq]

    def apply(
        self,
        seq: int,
        parts: Sequence[Part],
        *,
        logits: bool = True,
        progress: Progress | None = None,
    ) -> Applied:
        old, new = self._sequences[seq], []
        reused = moved = decoded = spliced = 0
        total = sum(part.n_tokens for part in parts if isinstance(part, Decode))
        if self._script.fail is not None and self._script.n_fails > 0:
            self._script.n_fails -= 1
            raise self._script.fail
        for part in parts:
            if isinstance(part, Keep):
                if part.start == len(new):
                    reused += part.n_tokens
                else:
                    moved += part.n_tokens
                new += old[part.start : part.stop]
            elif isinstance(part, Decode):
                if progress is not None:
                    progress(decoded, total)
                self._script.reading.wait()
                decoded += part.n_tokens
                new += part.tokens
            else:
                spliced += part.n_tokens
                new += self._artifacts[part.artifact][part.start : part.stop]
        self._sequences[seq] = tuple(new)
        return Applied(reused, moved, decoded, spliced, decode_seconds=decoded / 1000, seconds=decoded / 1000)

    def check(self, seq: int) -> None:
        return

    def fork(self, seq: int, length: int, *, for_undo: bool = False) -> int:
        twin = self.new_sequence()
        self._sequences[twin] = self._sequences[seq][:length]
        return twin

    def logits(self, seq: int) -> NDArray[np.float32]:
        return np.zeros(1, np.float32)

    def score(self, seq: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        raise AssertionError("not asked for by the screens")

    def generate(self, seq: int, sampling: Sampling, max_tokens: int) -> Generation:
        generation = Generation(seconds=0.5)
        generation.events = self._speak(seq, generation)
        self._script.calls.append(f"generate temperature={sampling.temperature:g} max_tokens={max_tokens}")
        return generation

    def compile(self, job: CompileJob, *, progress: Progress | None = None) -> Compiled:
        n = len(job.tokens)
        if progress is not None:
            progress(n // 2, n)
        self._script.compiling.wait()
        labels = job.labels
        meta = ArtifactMeta(
            skill=labels.skill,
            skill_sha256=labels.skill_sha256,
            model_fingerprint=self.info.fingerprint,
            model_name=self.info.name,
            model_arch=self.info.arch,
            tokens=job.tokens,
            position_start=0,
            lead=labels.lead,
            wrapper=labels.wrapper,
            rotation_fingerprint="r",
            store=job.store,
            llama_cpp_version=version("llama-cpp-python"),
            created="2026-01-31T12:00:00+00:00",
            fields=labels.fields,
        )
        job.path.parent.mkdir(parents=True, exist_ok=True)
        write_state_artifact(job.path, meta, bytes(16 * n))
        self._artifacts[job.path] = job.tokens
        return Compiled(job.path, n, 23_040 * n, n, 1.0, 1.5)

    def park(self, seq: int, key: str, *, on_disk: bool = False) -> Parked:
        self._parked[key] = self._sequences[seq]
        self.free_sequence(seq)
        self._script.calls.append("park")
        return Parked(True)

    def unpark(self, key: str) -> int | None:
        if key not in self._parked:
            return None
        seq = self.new_sequence()
        self._sequences[seq] = self._parked.pop(key)
        return seq

    def discard(self, key: str) -> None:
        self._parked.pop(key, None)

    def cancel(self) -> None:
        self._script.calls.append("cancel")
        self._stop.set()
        self._script.reading.cancel()
        self._script.compiling.cancel()
        self._script.spoken.put("")

    def close(self) -> None:
        self.closed = True

    def _speak(self, seq: int, generation: Generation) -> Generator[TokenEvent, None, None]:
        self._stop.clear()
        script = self._script
        if script.answer is not None:
            script.say(*re.findall(r"\s*\S+|\s+$", script.answer))
            script.end()
        while True:
            piece = script.spoken.get(timeout=PATIENCE)
            if self._stop.is_set():
                generation.stop_reason = StopReason.STOPPED
                return
            if piece is None:
                generation.stop_reason = StopReason.END
                return
            for token in self.tokenize(piece):
                generation.tokens.append(token)
                self._sequences[seq] += (token,)
                yield TokenEvent(token, self._words[token])
