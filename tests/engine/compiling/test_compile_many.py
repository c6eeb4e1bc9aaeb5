"""Batches of artifacts in one context give what one artifact at a time gives."""

from __future__ import annotations

import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvnotes_local.artifacts.artifact import open_artifact
from kvnotes_local.contract.compile_job import (
    ArtifactLabels,
    CompileEvent,
    CompileJob,
    JobDone,
    JobFailed,
    JobProgress,
    JobSkipped,
)
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.errors import Cancelled, DiskFullError
from kvnotes_local.kv.block_types import block_type
from kvnotes_local.kv.layout import StateRows
from tests.conftest import MakeEngine, both_engines

TEXTS = (
    "The lamp is green. " * 5,
    "Short.",
    "A longer text about the harbour and its keeper. " * 25,
    "Two words " * 12,
)
LEADS = ("<s>Hello. ", "<s>Good morning, how are you today? ")


def jobs_of(engine: LlamaEngine, folder: Path, texts: tuple[str, ...] = TEXTS) -> list[CompileJob]:
    leads = tuple(tuple(engine.tokenize(lead, special=True)) for lead in LEADS)
    return [
        CompileJob(
            tuple(engine.tokenize(text)), leads, folder / f"{at}.safetensors", ArtifactLabels(f"s{at}", "", "", "")
        )
        for at, text in enumerate(texts)
    ]


def values(rows: StateRows) -> list[np.ndarray]:
    """Keys and values of all layers as float32."""
    return [
        block_type(tensor.type).dequantize(data)
        for cache, layout in zip(rows.caches, rows.layout.caches, strict=True)
        for layer, k, v in zip(layout.layers, cache.k, cache.v, strict=True)
        for tensor, data in ((layer.k, k), (layer.v, v))
        if tensor is not None and data is not None
    ]


def ends(events: list[CompileEvent]) -> list[CompileEvent]:
    return [event for event in events if not isinstance(event, JobProgress)]


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt-oss", "phi3"])
def test_a_batch_gives_the_rows_that_single_artifacts_have(tiny_engine: MakeEngine, tmp_path: Path, name: str) -> None:
    engine = tiny_engine(name, n_ctx=2048)
    events: list[CompileEvent] = []
    together = jobs_of(engine, tmp_path / "together")
    engine.compile_many(together, listen=events.append)
    assert [event.job for event in ends(events) if isinstance(event, JobDone)] == [0, 1, 2, 3]
    for batch, single in zip(together, jobs_of(engine, tmp_path / "single"), strict=True):
        engine.compile(single)
        with open_artifact(batch.path) as one, open_artifact(single.path) as other:
            assert one.meta.tokens == other.meta.tokens
            assert one.meta.position_start == other.meta.position_start
            for left, right in zip(values(one.rows()), values(other.rows()), strict=True):
                # Another batch split moves rows of F16 by a few of their last bits.
                assert np.abs(left - right).max() <= 4e-3 * max(1.0, np.abs(right).max())


@pytest.mark.parametrize("name", ["mamba", "falcon-h1"])
def test_whole_states_can_be_made_in_a_batch(tiny_engine: MakeEngine, tmp_path: Path, name: str) -> None:
    engine = tiny_engine(name, n_ctx=2048)
    jobs = [replace(job, leads=job.leads[:1]) for job in jobs_of(engine, tmp_path)]
    events: list[CompileEvent] = []
    engine.compile_many(jobs, listen=events.append)
    assert len([event for event in events if isinstance(event, JobDone)]) == len(jobs)
    for job in jobs:
        with open_artifact(job.path) as artifact:
            assert artifact.is_state
            assert artifact.meta.tokens == job.leads[0] + job.tokens


@both_engines
def test_leads_are_computed_once_a_batch(tiny_engine: MakeEngine, tmp_path: Path) -> None:
    engine = tiny_engine(n_ctx=2048)
    jobs = jobs_of(engine, tmp_path, TEXTS * 3)
    cost = engine.compile_many(jobs)
    leads = sum(map(len, jobs[0].leads))
    assert cost.decoded == leads + sum(len(job.leads) * len(job.tokens) for job in jobs)


@both_engines
def test_progress_counts_the_tokens_of_the_skill(tiny_engine: MakeEngine, tmp_path: Path) -> None:
    engine = tiny_engine(n_ctx=2048)
    seen: list[tuple[int, int]] = []
    job = jobs_of(engine, tmp_path)[2]
    engine.compile(job, progress=lambda done, total: seen.append((done, total)))
    assert len(job.tokens) > 1000
    assert {total for _, total in seen} == {len(job.tokens)}
    assert seen == sorted(set(seen))
    assert seen[-1][0] == len(job.tokens)
    assert len(seen) > 2


def test_llama_cpps_own_speed_is_sampled_in_larger_batches_only(tiny_engine: MakeEngine, tmp_path: Path) -> None:
    engine = tiny_engine(n_ctx=2048)
    small = engine.compile_many(jobs_of(engine, tmp_path / "small"))
    assert small.share_of_plain is None
    large = engine.compile_many(jobs_of(engine, tmp_path / "large", (TEXTS[2],) * 12))
    assert 0 < large.sample_tokens <= 0.06 * large.decoded
    assert large.share_of_plain is not None
    assert large.sample_plain_seconds > 0
    assert 0 < large.sample_seconds < large.seconds
    assert large.tokens_per_second is not None


def test_what_another_process_has_made_meanwhile_is_left_alone(tiny_engine: MakeEngine, tmp_path: Path) -> None:
    engine = tiny_engine(n_ctx=2048)
    jobs = [replace(job, keep_existing=True) for job in jobs_of(engine, tmp_path)]
    jobs[2].path.write_bytes(b"theirs")
    events: list[CompileEvent] = []
    engine.compile_many(jobs, listen=events.append)
    assert JobSkipped(2) in events
    assert jobs[2].path.read_bytes() == b"theirs"
    assert sum(isinstance(event, JobDone) for event in events) == 3


@both_engines
def test_a_job_that_fails_does_not_stop_the_others(tiny_engine: MakeEngine, tmp_path: Path) -> None:
    engine = tiny_engine(n_ctx=512)
    jobs = jobs_of(engine, tmp_path)
    jobs[0] = replace(jobs[0], path=tmp_path / "file" / "x.safetensors")
    (tmp_path / "file").write_text("a file where the folder should be")
    events: list[CompileEvent] = []
    engine.compile_many(jobs, listen=events.append)
    failed = {event.job: str(event.error) for event in events if isinstance(event, JobFailed)}
    assert failed.keys() == {0, 2}
    assert "--n-ctx" in failed[2]
    assert {event.job for event in events if isinstance(event, JobDone)} == {1, 3}


def test_a_stopped_batch_keeps_what_is_done_and_leaves_nothing_half_written(
    tiny_engine: MakeEngine, tmp_path: Path
) -> None:
    engine = tiny_engine(n_ctx=2048)
    jobs = jobs_of(engine, tmp_path, (TEXTS[2],) * 6)
    done: list[int] = []

    def listen(event: CompileEvent) -> None:
        if isinstance(event, JobDone):
            done.append(event.job)
        elif isinstance(event, JobProgress) and event.job == 2:
            threading.Thread(target=engine.cancel).start()
            while not engine._context.abort.is_set():
                pass

    with pytest.raises(Cancelled):
        engine.compile_many(jobs, listen=listen)
    assert done == [0, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.safetensors", "1.safetensors"]
    seq = engine.new_sequence()  # the engine goes on working
    engine.score(seq, jobs[0].tokens[:4])


@contextmanager
def largest_file(n_bytes: int) -> Iterator[None]:
    """No file may grow beyond ``n_bytes``: writing fails as on a full disk, after a part of it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_a_full_disk_stops_the_batch_with_nothing_half_written(tiny_engine: MakeEngine, tmp_path: Path) -> None:
    engine = tiny_engine(n_ctx=2048)
    jobs = jobs_of(engine, tmp_path, (TEXTS[1], TEXTS[2], TEXTS[0]))
    events: list[CompileEvent] = []
    with largest_file(200_000), pytest.raises(DiskFullError, match="make room"):
        engine.compile_many(jobs, listen=events.append)
    assert [type(event).__name__ for event in ends(events)] == ["JobDone", "JobFailed"]
    assert [path.name for path in tmp_path.iterdir()] == ["0.safetensors"]
