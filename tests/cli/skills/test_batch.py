"""Batches of skills: a plan first, nothing twice, nothing half-made, whatever interrupts them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kvnotes_local.cli.skills import batch_run
from kvnotes_local.engine.llama.model import LlamaModel
from kvnotes_local.wording import counted
from tests.cli.skills.batches import Batch, Kvnotes, events, wait_for, write_skills
from tests.conftest import Run
from tests.zoo import zoo_model

needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="sends signals, which Windows has not")


@pytest.fixture
def tiny(zoo_directory: Path) -> Path:
    return zoo_model("llama", zoo_directory)


def test_the_plan_comes_first_and_says_what_is_missing(kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path) -> None:
    batch = Batch(tmp_path, tiny, 3, here=kvnotes_here)
    planned = batch.run("--plan", "--json")
    (plan,) = events(planned.err)
    assert plan["event"] == "plan"
    assert (plan["missing"], plan["up_to_date"]) == (batch.names, [])
    assert plan["seconds"] is None  # nothing was measured yet
    assert not batch.artifacts()

    made = batch.run("--json")
    told = [event["event"] for event in events(made.err)]
    assert told[0] == "plan"
    assert told[-1] == "model"
    assert set(told) == {"plan", "progress", "skill", "model"}
    document = json.loads(made.out)
    assert [one["status"] for one in document["artifacts"]] == ["compiled"] * 3
    size = sum(path.stat().st_size for path in batch.artifacts().values())
    assert plan["bytes"] <= size < 1.5 * plan["bytes"]
    assert plan["n_tokens"] == sum(one["n_tokens"] for one in document["artifacts"])
    assert document["models"][0]["tokens_per_second"] > 0

    (batch.skills / "skill-01" / "SKILL.md").write_text("---\nname: skill-01\ndescription: d\n---\nAnother text.\n")
    plan = next(events(batch.run("--plan").err))
    assert (plan["missing"], plan["up_to_date"]) == (["skill-01"], ["skill-00", "skill-02"])
    assert plan["seconds"] > 0


def test_what_does_not_fit_is_named_in_the_plan_and_counts_for_nothing(
    kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path
) -> None:
    batch = Batch(tmp_path, tiny, 2, here=kvnotes_here)
    (batch.skills / "skill-01" / "SKILL.md").write_text(
        "---\nname: skill-01\ndescription: d\n---\n" + "All too long. " * 900
    )

    def compile_(*more: object) -> Run:
        return kvnotes_here("skills", "compile", "--skills-dir", batch.skills, "--model", tiny, "--threads", 1, *more)

    alone = next(events(compile_("skill-00", "--n-ctx", 4096, "--plan", "--progress", "json").err))
    planned = batch.run("--plan", "--json", "--n-ctx", 4096)
    plan = next(events(planned.err))
    assert (plan["missing"], plan["impossible"]) == (["skill-00"], ["skill-01"])
    assert (plan["n_tokens"], plan["bytes"]) == (alone["n_tokens"], alone["bytes"])
    failed = [one for one in json.loads(planned.out)["artifacts"] if one["status"] == "failed"]
    assert (planned.code, [one["skill"] for one in failed]) == (1, ["skill-01"])

    made = batch.run("--json", "--n-ctx", 4096)
    assert (made.code, sorted(batch.artifacts())) == (1, ["skill-00"])
    assert [one for one in json.loads(made.out)["artifacts"] if one["status"] == "failed"] == failed
    assert "needs a context of" in failed[0]["problem"]
    people = compile_(*batch.names, "--n-ctx", 4096, "--plan")
    assert "1 up to date, 0 to make, cannot be made: skill-01" in people.out
    assert "1 to make" in compile_(*batch.names, "--n-ctx", 16384, "--plan").out


def test_progress_never_goes_back_and_ends_at_the_total(kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path) -> None:
    batch = Batch(tmp_path, tiny, 3, words=300, here=kvnotes_here)
    seen = [event for event in events(batch.run().err) if event["event"] == "progress"]
    done = [event["batch_done"] for event in seen]
    assert done == sorted(done)
    assert done[-1] == seen[-1]["batch_total"]
    assert {event["batch_total"] for event in seen} == {seen[0]["batch_total"]}


def test_several_models_are_served_one_after_the_other(
    kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path, zoo_directory: Path
) -> None:
    batch = Batch(tmp_path, tiny, 2, here=kvnotes_here)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF no")
    run = batch.run("--json", "--model", zoo_model("qwen2", zoo_directory), "--model", broken)
    assert run.code == 1
    entries = json.loads(run.out)["artifacts"]
    done = [(one["model"].split("-")[0], one["skill"]) for one in entries if one["status"] == "compiled"]
    assert done == [(model, skill) for model in ("llama", "qwen2") for skill in batch.names]
    assert [one["status"] for one in entries].count("failed") == 1
    assert "broken.gguf" in run.err
    order = [event["model"].split("-")[0] for event in events(run.err) if event["event"] == "plan"]
    assert order == ["llama", "qwen2"]


@pytest.mark.parametrize(("free", "n_loads"), [(1 << 50, 1), (0, 2)], ids=["room for all", "no room"])
def test_several_models_are_planned_before_anything_is_made_and_each_is_loaded_once_if_all_fit(
    kvnotes_here: Kvnotes,
    tmp_path: Path,
    zoo_directory: Path,
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    n_loads: int,
) -> None:
    loads: list[Path] = []
    load = LlamaModel.__init__

    def counting(self: LlamaModel, path: Path, **how: object) -> None:
        loads.append(path)
        load(self, path, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(LlamaModel, "__init__", counting)
    monkeypatch.setattr(batch_run, "available_memory", lambda: free)
    others = [zoo_model(name, zoo_directory) for name in ("qwen2", "gemma2")]
    batch = Batch(tmp_path, tiny, 2, here=kvnotes_here)
    run = batch.run("--json", *(word for other in others for word in ("--model", other)))
    assert run.code == 0, run.err
    # The first one is made right after its plan, which comes last: it never has to be loaded again.
    assert sorted(loads) == sorted([tiny, *others * n_loads])
    told = [(event["event"], event.get("model")) for event in events(run.err) if event["event"] != "progress"]
    names = [path.stem for path in (tiny, *others)]
    assert told[:4] == [*(("plan", name) for name in names), ("total", None)]
    assert [name for what, name in told if what == "model"] == names
    plans, (total,) = json.loads(run.out)["plans"], [one for one in events(run.err) if one["event"] == "total"]
    assert (total["n_tokens"], total["bytes"]) == tuple(sum(one[key] for one in plans) for key in ("n_tokens", "bytes"))
    loads.clear()
    again = batch.run("--plan", *(word for other in others for word in ("--model", other)))
    total = next(one for one in events(again.err) if one["event"] == "total")
    assert (total["missing"], total["n_tokens"], sorted(loads)) == (0, 0, sorted([tiny, *others]))


def test_a_skill_that_cannot_be_compiled_does_not_stop_the_others(
    kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path
) -> None:
    batch = Batch(tmp_path, tiny, 3, here=kvnotes_here)
    (batch.skills / "skill-01" / "SKILL.md").write_text("---\nname: skill-01\ndescription: d\n---\n" + "Long. " * 2000)
    run = batch.run("--json", "--n-ctx", 2048)
    assert run.code == 1
    assert "1 of 3 artifacts could not be made: skill-01 (llama-" in run.err
    status = {one["skill"]: one["status"] for one in json.loads(run.out)["artifacts"]}
    assert status == {"skill-00": "compiled", "skill-01": "failed", "skill-02": "compiled"}
    assert "--n-ctx" in run.err


def test_references_are_compiled_as_parts_of_their_own(kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path) -> None:
    skills = write_skills(tmp_path / "skills", 1)
    (skills / "skill-00" / "references").mkdir()
    (skills / "skill-00" / "references" / "x.md").write_text("Ships carry salt. " * 20)
    common = ("--skills-dir", skills, "--model", tiny, "--json", "--threads", 1)
    run = kvnotes_here("skills", "compile", "skill-00", "--with", "references/x.md", *common)
    assert {one["skill"] for one in json.loads(run.out)["artifacts"]} == {"skill-00", "skill-00/references/x.md"}
    asked = kvnotes_here("ask", "Hi", "--skill", "skill-00/references/x.md", "--max-tokens", 2, *common)
    assert json.loads(asked.out)["tokens"]["spliced"] > 300
    missing = kvnotes_here("skills", "compile", "skill-00", "--with", "references/y.md", *common)
    assert missing.code == 1
    assert "references/y.md" in missing.err


@needs_signals
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(tmp_path: Path, tiny: Path) -> None:
    batch = Batch(tmp_path, tiny, 6, words=250)
    process = batch.start()
    wait_for(process, '"event": "skill"')
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    there = batch.artifacts()
    assert f"{counted(len(there), 'artifact')} made, {6 - len(there)} missing; run the same command again" in err
    assert "Traceback" not in err
    assert 1 <= len(there) < 6
    assert not batch.half_written()
    inodes = {path: path.stat().st_ino for path in there.values()}
    assert batch.run().code == 0
    assert set(batch.artifacts()) == set(batch.names)
    assert {path: path.stat().st_ino for path in inodes} == inodes  # not made twice


@needs_signals
@pytest.mark.parametrize("n_kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_a_batch_that_is_killed_at_random_moments_completes_and_makes_nothing_twice(
    tmp_path: Path, tiny: Path, n_kills: int
) -> None:
    batch = Batch(tmp_path, tiny, 12, words=150)
    choose = random.Random(n_kills)
    before: dict[Path, int] = {}
    began = time.monotonic()
    process = batch.start("--force")
    wait_for(process, '"plan"')
    planned = time.monotonic()
    process.communicate(timeout=300)
    lasts = time.monotonic() - planned
    assert time.monotonic() - began < 300
    for path in batch.artifacts().values():
        path.unlink()
    for _ in range(n_kills):
        process = batch.start()
        moment = choose.uniform(0, lasts / n_kills * 2)
        wait_for(process, '"plan"')
        timer = threading.Timer(moment, process.kill)
        timer.start()
        _, err = process.communicate(timeout=300)
        timer.join()
        # What was told to be done is there and whole; at most what was under way is lost.
        told = {event["skill"] for event in events(err) if event["event"] == "skill"}
        assert told <= set(batch.artifacts())
        now = {path: path.stat().st_ino for path in batch.artifacts().values()}
        assert before.items() <= now.items()
        before = now
    done = batch.run("--json")
    assert done.code == 0
    assert set(batch.artifacts()) == set(batch.names)
    statuses = [one["status"] for one in json.loads(done.out)["artifacts"]]
    assert statuses.count("up to date") == len(before)


def test_two_batches_at_once_do_not_harm_each_other(tmp_path: Path, tiny: Path) -> None:
    batch = Batch(tmp_path, tiny, 8, words=200)
    both = [batch.start("--json") for _ in range(2)]
    ends = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    for out, err in ends:
        assert "Traceback" not in err
        assert {one["skill"] for one in json.loads(out)["artifacts"]} == set(batch.names)
    assert set(batch.artifacts()) == set(batch.names)
    assert not batch.half_written()


@needs_signals
def test_a_disk_that_fills_up_stops_the_batch_with_nothing_half_written(tmp_path: Path, tiny: Path) -> None:
    batch = Batch(tmp_path, tiny, 6, words=100)
    assert batch.run("--plan").code == 0  # fingerprint and rotation are measured without a limit
    run = batch.run(limit=600_000)
    assert run.code == 1
    assert "make room with 'kvnotes skills gc'" in run.err
    assert "Traceback" not in run.err
    there = batch.artifacts()
    assert f"{counted(len(there), 'artifact')} made, {6 - len(there)} missing; run the same command again" in run.err
    assert 1 <= len(there) < 6
    assert not batch.half_written()
    assert batch.run().code == 0
    assert set(batch.artifacts()) == set(batch.names)


def test_a_disk_that_is_too_small_is_said_before_starting(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one thing that is not real here is the number of free bytes."""
    from kvnotes_local.cli.output import Output
    from kvnotes_local.cli.skills import batch_room
    from kvnotes_local.cli.skills.batch_report import ProgressStyle, batch_report
    from kvnotes_local.cli.skills.batch_run import BatchRun
    from kvnotes_local.cli.skills.batch_wanted import Wanted
    from kvnotes_local.contract.store_type import StoreType
    from kvnotes_local.errors import DiskFullError
    from kvnotes_local.session.engine_options import EngineOptions

    monkeypatch.setenv("KVNOTES_LOG_DIR", str(tmp_path / "log"))
    free = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr(batch_room.shutil, "disk_usage", lambda path: free)
    output = Output(quiet=True)
    wanted = Wanted((), True, (), (write_skills(tmp_path / "skills", 2),))
    options = EngineOptions(threads=1, cache_dir=tmp_path / "cache")
    run = BatchRun(wanted, [str(tiny)], options, StoreType.F16, output, batch_report(ProgressStyle.NONE, output))
    with pytest.raises(DiskFullError, match=r"would take about .* has 1\.0 MiB free.*--store q8_0"):
        run.go()
    assert not list((tmp_path / "cache").glob("artifacts/*/*"))


def test_jobs_are_refused_with_the_reason(kvnotes_here: Kvnotes) -> None:
    run = kvnotes_here("skills", "compile", "--all", "--jobs", 2)
    assert run.code == 1
    assert "keeps the whole device busy" in run.err


@needs_signals
def test_watch_compiles_again_what_changes(tmp_path: Path, tiny: Path) -> None:
    batch = Batch(tmp_path, tiny, 2, words=20)
    process = batch.start("--watch")
    wait_for(process, "Watching 2 files")
    first = batch.artifacts()
    (batch.skills / "skill-00" / "SKILL.md").write_text("---\nname: skill-00\ndescription: d\n---\nThe bell rings.\n")
    line = json.loads(wait_for(process, '"compiled"'))
    while line["skill"] != "skill-00":
        line = json.loads(wait_for(process, '"compiled"'))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "No longer watching" in err
    paths = set(batch.cache.glob("artifacts/*/*.safetensors"))
    assert set(first.values()) < paths
    assert len(paths) == 3


def test_progress_is_told_in_lines_where_there_is_no_terminal(
    kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path
) -> None:
    batch = Batch(tmp_path, tiny, 2, here=kvnotes_here)
    run = batch.run("--progress", "lines")
    assert re.search(
        r"^llama-\w+: 0 up to date, 2 to make \([\d,]+ tokens, about .*; time not measured yet\)$", run.out, re.M
    )
    assert re.search(r"^skill-01: compiled, [\d,]+ tokens", run.out, re.M)
    assert re.search(r"tokens in [\d.]+ s, [\d,]+ tokens/s", run.out)
    assert "{" not in run.out + run.err


@needs_signals
def test_a_bar_is_drawn_on_a_terminal(tmp_path: Path, tiny: Path) -> None:
    import pty

    batch = Batch(tmp_path, tiny, 3, words=300)
    leader, follower = pty.openpty()
    keep = {key: value for key, value in os.environ.items() if not key.startswith("KVNOTES")}
    command = [
        sys.executable,
        "-m",
        "kvnotes_local",
        "skills",
        "compile",
        *batch.names,
        "--skills-dir",
        batch.skills,
    ]
    process = subprocess.Popen(
        [*map(str, command), "--model", str(tiny), "--threads", "1", "--n-ctx", "8192"],
        env={**keep, "KVNOTES_CACHE_DIR": str(batch.cache), "HOME": str(tmp_path), "TERM": "xterm", "COLUMNS": "100"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=follower,
        text=True,
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:  # Linux says so when the other side has gone
            break
        if not piece:
            break
        seen += piece
    os.close(leader)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, seen
    assert "skill-02: compiled" in out
    assert "━".encode() in seen
    assert b"tokens" in seen


@pytest.mark.model
@pytest.mark.slow
def test_compiling_keeps_up_with_plain_prefill(tmp_path: Path, kvnotes: Kvnotes, smollm2_path: Path) -> None:
    run = kvnotes("skills", "compile", "--all", "--model", smollm2_path, "--json", timeout=1200)
    (model,) = json.loads(run.out)["models"]
    assert model["sample_tokens"] > 250
    assert model["share_of_plain_prefill"] >= 0.95
