"""Batches over libraries in which something is always wrong: what can be made is made, the rest is said."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path

import pytest

from kvnotes_local.cli.skills import batch_room
from kvnotes_local.cli.skills.batch_room import check_room
from kvnotes_local.contract.store_type import StoreType
from kvnotes_local.errors import DiskFullError
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.batch import PlannedSkill, PlanStatus
from kvnotes_local.skills.skill import Skill
from tests.cli.skills.batches import Batch, Kvnotes, events, wait_for, write_skills
from tests.conftest import Run
from tests.zoo import zoo_model

HEAD = "---\nname: {}\ndescription: d\n---\n"
BROKEN = {
    "no description": b"---\nname: broken\n---\nText.\n",
    "no frontmatter": b"Text.\n",
    "not UTF-8": b"---\nname: broken\ndescription: d\n---\nCaf\xe9.\n",
    "not UTF-8, far down": b"---\nname: broken\ndescription: d\n---\n" + b"Text.\n" * 1000 + b"\xe9",
    "too large": b"---\nname: broken\ndescription: d\n---\n" + b"Text.\n" * 200_000,
    "empty": b"---\nname: broken\ndescription: d\n---\n",
}


@pytest.fixture
def tiny(zoo_directory: Path) -> Path:
    return zoo_model("llama", zoo_directory)


def statuses(run: Run) -> dict[str, str]:
    return {one["skill"]: one["status"] for one in json.loads(run.out)["artifacts"]}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_broken_skill_is_named_and_does_not_stop_the_others(
    kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path, data: bytes
) -> None:
    skills = write_skills(tmp_path / "skills", 2, words=10)
    (skills / "broken").mkdir()
    (skills / "broken" / "SKILL.md").write_bytes(data)
    common = ("--skills-dir", skills, "--model", tiny, "--threads", 1, "--json")
    run = kvnotes_here("skills", "compile", "skill-00", "broken", "no-such-skill", "skill-01", *common)
    assert run.code == 1
    found = statuses(run)
    assert found == {"skill-00": "compiled", "broken": "failed", "no-such-skill": "failed", "skill-01": "compiled"}
    (summary,) = (line for line in run.err.splitlines() if "could not be made" in line)
    assert "broken" in summary
    assert "no-such-skill" in summary

    every = kvnotes_here("skills", "compile", "--all", "--plan", *common)
    said = [line for line in every.err.splitlines() if str(skills / "broken" / "SKILL.md") in line or "broken" in line]
    skipped = json.loads(every.out)["skipped"]
    assert said
    assert skipped or statuses(every)["broken"] == "failed"
    assert every.code == (0 if skipped else 1)

    alone = kvnotes_here("skills", "compile", "broken", *common)
    assert alone.code == 1
    assert "Traceback" not in alone.err


def test_a_broken_reference_does_not_stop_the_others(kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path) -> None:
    skills = write_skills(tmp_path / "skills", 3, words=10)
    for number, data in enumerate((b"Ships carry salt.\n", b"caf\xe9")):
        (skills / f"skill-0{number}" / "references").mkdir()
        (skills / f"skill-0{number}" / "references" / "x.md").write_bytes(data)
    common = ("--skills-dir", skills, "--model", tiny, "--threads", 1, "--json", "--plan")
    run = kvnotes_here(
        "skills", "compile", "--all", "--with", "references/x.md", "--with", "references/none.md", *common
    )
    assert run.code == 1
    failed = {name for name, status in statuses(run).items() if status == "failed"}
    assert failed == {"skill-01/references/x.md", "references/none.md"}
    (plan,) = json.loads(run.out)["plans"]
    assert {"skill-00", "skill-01", "skill-02", "skill-00/references/x.md"} <= set(plan["missing"])


def test_what_is_named_twice_is_made_once(
    kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skills = write_skills(tmp_path / "skills", 1, words=10)
    (skills / "skill-00" / "references").mkdir()
    (skills / "skill-00" / "references" / "x.md").write_text("Ships carry salt.\n")
    monkeypatch.setenv("KVNOTES_MODELS", str(tiny))
    shutil.copy(tiny, tmp_path / "copy.gguf")
    names = ("skill-00", "skill-00/references/x.md", "skill-00")
    models = ("--model", tiny, "--model", tmp_path / "copy.gguf")
    run = kvnotes_here(
        "skills",
        "compile",
        *names,
        "--with",
        "references/x.md",
        "--skills-dir",
        skills,
        *models,
        "--threads",
        1,
        "--json",
    )
    assert run.code == 0, run.err
    assert [one["skill"] for one in json.loads(run.out)["artifacts"]].count("skill-00/references/x.md") == 1
    assert statuses(run) == {"skill-00": "compiled", "skill-00/references/x.md": "compiled"}
    assert "is the same model as" in run.err


@pytest.mark.parametrize(
    "more",
    [(), ("skill-00", "no-such-skill"), ("--model", "no-such-model"), ("--jobs", 2), ("--plan",)],
    ids=["good", "a failed skill", "no model", "jobs", "plan"],
)
def test_with_json_progress_every_line_of_stderr_is_an_object(
    kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path, more: tuple[object, ...]
) -> None:
    skills = write_skills(tmp_path / "skills", 1, words=40)
    model = () if "no-such-model" in more else ("--model", tiny, "--n-ctx", 2048)
    run = kvnotes_here(
        "skills", "compile", "skill-00", *more, "--skills-dir", skills, *model, "--threads", 1, "--progress", "json"
    )
    told = [json.loads(line) for line in run.err.splitlines()]
    assert all(isinstance(one["event"], str) for one in told)
    assert told[-1]["event"] == ("error" if run.code else "plan" if "--plan" in more else "model")
    assert run.code == (1 if {"no-such-skill", "no-such-model", "--jobs"} & set(more) else 0)


def test_a_cache_that_cannot_be_written_is_said_before_the_work(
    kvnotes_here: Kvnotes, tmp_path: Path, tiny: Path
) -> None:
    batch = Batch(tmp_path, tiny, 2, here=kvnotes_here)
    batch.cache.mkdir()
    (batch.cache / "artifacts").write_text("a file where a folder has to be")
    run = batch.run()
    assert run.code == 1
    told = list(events(run.err))
    assert [one["event"] for one in told] == ["plan", "error"]
    assert "cannot be written" in told[-1]["message"]
    assert "--cache-dir" in told[-1]["message"]
    assert "make room" not in run.err
    assert batch.run("--plan").code == 0


def test_room_is_needed_for_what_is_new_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one thing that is not real here is the number of free bytes."""
    store = ArtifactStore(tmp_path / "artifacts")

    class Planned:
        store = StoreType.F16

        def __init__(self, path: Path) -> None:
            self.path = path

    def planned(name: str, there: bool) -> PlannedSkill:
        path = tmp_path / name
        if there:
            path.write_bytes(b"x" * 10_000_000)
        skill = Skill(name, "d", tmp_path)
        return PlannedSkill(skill, PlanStatus.MISSING, n_bytes=10_000_000, task=Planned(path))  # type: ignore[arg-type]

    free = type("Usage", (), {"free": (16 << 20) + 15_000_000})
    monkeypatch.setattr(batch_room.shutil, "disk_usage", lambda folder: free)
    check_room(store, [planned("a", True), planned("b", True), planned("c", True)])
    with pytest.raises(DiskFullError, match=r"19\.1 MiB, and 16\.0 MiB shall stay free, .* has 30\.3 MiB free"):
        check_room(store, [planned("a", False), planned("d", False)])


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals, which Windows has not")
def test_watch_sees_parts_and_broken_skills_and_tells_news_only(tmp_path: Path, tiny: Path) -> None:
    batch = Batch(tmp_path, tiny, 2, words=10)
    part = batch.skills / "skill-01" / "references" / "x.md"
    part.parent.mkdir()
    part.write_text("Ships carry salt.\n")
    batch.names.append("skill-01/references/x.md")
    process = batch.start("--watch")
    wait_for(process, "Watching 3 files")
    part.write_text("Ships carry salt and coal.\n")
    line = wait_for(process, '"skill", ')  # the first that is told again
    assert (json.loads(line)["skill"], json.loads(line)["status"]) == ("skill-01/references/x.md", "compiled")
    file = batch.skills / "skill-00" / "SKILL.md"
    file.write_text("no frontmatter")
    assert json.loads(wait_for(process, '"failed"'))["skill"] == "skill-00"
    file.write_text("no frontmatter\nstill none")  # the same problem is no news
    file.with_name("note.txt").write_text("")
    part.write_text("Ships carry salt, coal and grain.\n")
    line = wait_for(process, '"skill", ')
    assert json.loads(line)["skill"] == "skill-01/references/x.md"
    file.write_text(HEAD.format("skill-00") + "The bell rings.\n")
    line = wait_for(process, '"skill", ')
    assert (json.loads(line)["skill"], json.loads(line)["status"]) == ("skill-00", "compiled")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
