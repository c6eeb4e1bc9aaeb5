"""The engine in a process of its own does what the one in this process does, can be stopped at any time, and ends with us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from kvnotes_local.contract.compile_job import ArtifactLabels, CompileJob
from kvnotes_local.contract.generation import Sampling, StopReason
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.contract.plan import Decode, Graft, Keep, Splice
from kvnotes_local.contract.protocol import Engine
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.engine.process.child_engine import ChildEngine
from kvnotes_local.errors import Cancelled, ContextFullError, EngineError, EngineLost, ModelError
from kvnotes_local.kv.layout import GGMLType
from tests.zoo import zoo_model

PARAMS = EngineParams(n_ctx=1024, n_threads=1, type_k=GGMLType.F32, type_v=GGMLType.F32)


@pytest.fixture(scope="module")
def child(zoo_directory: Path, measurements: Path) -> Iterator[ChildEngine]:
    with ChildEngine(zoo_model("llama", zoo_directory), PARAMS, cache_dir=measurements) as engine:
        yield engine


@pytest.fixture(scope="module")
def here(zoo_directory: Path, measurements: Path) -> Iterator[LlamaEngine]:
    with LlamaEngine(zoo_model("llama", zoo_directory), PARAMS, cache_dir=measurements) as engine:
        yield engine


def played(engine: Engine, folder: Path) -> list[object]:
    """Every kind of call, and what it gave, times left out."""
    told: list[tuple[int, int]] = []
    seen: list[object] = []
    text = "The lamp on the quay is green. " * 10
    tokens = tuple(engine.tokenize(text))
    seen += [tokens, engine.detokenize(tokens), engine.tokenize("<|im_start|>", special=True)]
    labels = ArtifactLabels("lamp", "0" * 64, "l", "w")
    made = engine.compile(
        CompileJob(tokens, (tuple(engine.tokenize("Lead. ")),), folder / "lamp.safetensors", labels),
        progress=lambda done, total: told.append((done, total)),
    )
    seen += [made.n_tokens, made.decoded, told[-1]]
    seq = engine.new_sequence()
    told.clear()
    applied = engine.apply(
        seq,
        [Decode(tokens[:20]), Splice(made.path, 20, len(tokens)), Decode(tokens[:3])],
        progress=lambda done, total: told.append((done, total)),
    )
    seen += [applied.decoded, applied.spliced, applied.bytes_restored, told[-1], engine.tokens(seq), engine.logits(seq)]
    twin = engine.fork(seq, 50)
    engine.apply(twin, [Keep(0, 10), Keep(20, 40), Decode((5,))])
    seen += [engine.tokens(twin), engine.logits(twin), engine.score(twin, [6, 7])]
    engine.apply(twin, [Keep(0, 10), Graft(seq, 10, 30), Graft(seq, 30, 32, 30, (0.0, 0.5)), Decode((5,))])
    seen += [engine.tokens(twin), engine.logits(twin)]
    engine.check(twin)
    generation = engine.generate(twin, Sampling(temperature=1.0, seed=7), 20)
    seen += [list(generation), list(generation.tokens), generation.n_cached, generation.stop_reason]
    short = engine.generate(twin, Sampling(), 20)
    for number, _ in enumerate(short):
        if number == 3:
            short.close()
    seen += [list(short.tokens), short.n_cached, short.stop_reason, engine.tokens(twin)]
    seen.append(engine.park(twin, "twin"))
    back = engine.unpark("twin")
    assert back is not None
    seen += [engine.tokens(back), engine.unpark("nothing")]
    engine.discard("twin")
    engine.free_sequence(back)
    engine.free_sequence(seq)
    return seen


def test_every_call_gives_what_the_engine_in_this_process_gives(
    child: ChildEngine, here: LlamaEngine, tmp_path: Path
) -> None:
    assert child.info == here.info
    assert child.params == here.params
    for found, wanted in zip(played(child, tmp_path / "a"), played(here, tmp_path / "b"), strict=True):
        if isinstance(wanted, np.ndarray):
            assert isinstance(found, np.ndarray)
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            assert np.array_equal(found, wanted)
        else:
            assert found == wanted


def test_errors_keep_their_class_and_words(child: ChildEngine, here: LlamaEngine, zoo_directory: Path) -> None:
    def error_of(engine: Engine, kind: type[Exception]) -> str:
        seq = engine.new_sequence()
        with pytest.raises(kind) as caught:
            engine.apply(seq, [Decode(tuple([5] * 2000))])
        engine.free_sequence(seq)
        return str(caught.value)

    assert error_of(child, ContextFullError) == error_of(here, ContextFullError)
    with pytest.raises(ModelError, match="nowhere"):
        ChildEngine(Path("/nowhere/model.gguf"))
    with pytest.raises(EngineError, match="--n-ctx 256"):
        ChildEngine(zoo_model("llama", zoo_directory), EngineParams(n_ctx=10))


def test_loading_can_be_cancelled(zoo_directory: Path) -> None:
    with pytest.raises(Cancelled):
        ChildEngine(zoo_model("llama", zoo_directory), PARAMS, progress=lambda fraction: False)


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.model
def test_a_cancel_from_another_thread_stops_a_call_and_leaves_the_sequence(
    smollm2_path: Path, measurements: Path
) -> None:
    params = EngineParams(n_ctx=4096, n_threads=1, n_ubatch=32)
    with ChildEngine(smollm2_path, params, cache_dir=measurements) as engine:
        seq = engine.new_sequence()
        engine.apply(seq, [Decode(tuple(range(10, 20)))])
        before = engine.tokens(seq)
        done: list[int] = []

        def stop_after_the_first_batch(n: int, total: int) -> None:
            done.append(n)
            if len(done) == 2:
                threading.Thread(target=engine.cancel).start()

        with pytest.raises(Cancelled):
            engine.apply(seq, [Keep(0, 10), Decode(tuple([30] * 3000))], progress=stop_after_the_first_batch)
        # 32 tokens a batch: the cancel went out after the second report, and at most the batch under way was finished.
        assert done[-1] < 500
        assert engine.tokens(seq) == before
        with pytest.raises(EngineError, match="logits"):
            next(iter(engine.generate(seq, Sampling(), 5)))
        engine.apply(seq, [Keep(0, 10), Decode((7,))])  # and a cancel does not linger
        generation = engine.generate(seq, Sampling(), 400)
        for number, _ in enumerate(generation):
            if number == 2:
                engine.cancel()
        assert generation.stop_reason is StopReason.STOPPED
        assert len(generation.tokens) < 10
        engine.check(seq)


def test_text_is_tokenized_while_a_call_runs(child: ChildEngine) -> None:
    seq = child.new_sequence()
    seen: list[list[int]] = []
    worker: list[threading.Thread] = []

    def in_between(done: int, total: int) -> None:
        if not worker:
            worker.append(threading.Thread(target=lambda: seen.append(child.tokenize("quick"))))
            worker[0].start()
            worker[0].join(10)

    child.apply(seq, [Decode(tuple([5] * 900))], progress=in_between)
    child.free_sequence(seq)
    assert seen == [child.tokenize("quick")]


def test_an_error_in_a_progress_callback_stops_the_call(child: ChildEngine) -> None:
    def fail(done: int, total: int) -> None:
        raise ZeroDivisionError

    seq = child.new_sequence()
    with pytest.raises(ZeroDivisionError):
        child.apply(seq, [Decode(tuple([5] * 900))], progress=fail)
    child.apply(seq, [Decode((5, 6))])
    child.check(seq)
    child.free_sequence(seq)


PARENT = """
import sys
from pathlib import Path
from kvnotes_local import ChildEngine
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.contract.generation import Sampling
from kvnotes_local.contract.plan import Decode
engine = ChildEngine(Path(sys.argv[1]), EngineParams(n_ctx=1024, n_threads=1), cache_dir=Path(sys.argv[2]))
seq = engine.new_sequence()
engine.apply(seq, [Decode((5, 6, 7))])
print(engine.pid, flush=True)
while True:
    engine.apply(seq, [Decode(tuple([5] * 900))])
"""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_the_process_ends_with_its_parent_in_the_middle_of_its_work(
    zoo_directory: Path, measurements: Path, how: str
) -> None:
    command = [sys.executable, "-c", PARENT, str(zoo_model("llama", zoo_directory)), str(measurements)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running()
    if sys.platform == "win32":
        parent.kill()
    else:
        parent.send_signal(getattr(signal, how))
    parent.wait()
    assert wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_a_closed_engine_says_so_and_its_process_is_gone(zoo_directory: Path, measurements: Path) -> None:
    engine = ChildEngine(zoo_model("llama", zoo_directory), PARAMS, cache_dir=measurements)
    seq, pid = engine.new_sequence(), engine.pid
    engine.close()
    assert engine.pid is None
    assert pid is not None
    assert not psutil.pid_exists(pid)
    engine.cancel()  # Ctrl-C may come late
    with pytest.raises(EngineError, match="closed"):
        engine.tokens(seq)
    with pytest.raises(EngineError, match="closed"):
        engine.new_sequence()


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_a_killed_process_is_started_again_and_its_sequences_are_lost(zoo_directory: Path, measurements: Path) -> None:
    with ChildEngine(zoo_model("llama", zoo_directory), PARAMS, cache_dir=measurements) as engine:
        seq = engine.new_sequence()
        engine.apply(seq, [Decode((5, 6, 7))])
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        assert wait_until(lambda: engine.pid is None)
        with pytest.raises(EngineLost):
            engine.tokens(seq)
        new = engine.new_sequence()
        assert new != seq
        engine.apply(new, [Decode((5, 6, 7))])
        with pytest.raises(EngineLost):
            engine.apply(seq, [Decode((5,))])
        assert engine.tokens(new) == (5, 6, 7)
        engine.free_sequence(seq)  # what is gone is free
