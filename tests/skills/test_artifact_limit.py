"""Compiled skills stay within a limit, and the user is told what goes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.skills.artifact_limit import ArtifactLimit
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary

MakeEngine = Callable[..., LlamaEngine]


@pytest.fixture
def library(tmp_path: Path) -> SkillLibrary:
    for name in ("old", "pinned", "new"):
        folder = tmp_path / "skills" / name
        folder.mkdir(parents=True)
        pin = "metadata:\n  kvnotes.pin: true\n" if name == "pinned" else ""
        text = f"---\nname: {name}\ndescription: {name}\n{pin}---\n" + "The lamp on the quay is green. " * 20
        (folder / "SKILL.md").write_text(text)
    return SkillLibrary([tmp_path / "skills"])


def test_what_was_not_used_for_longest_goes_and_is_told(
    tiny_engine: MakeEngine, library: SkillLibrary, tmp_path: Path
) -> None:
    engine, store, told = tiny_engine("llama", n_ctx=4096), ArtifactStore(tmp_path / "artifacts"), list[str]()
    one = SkillCompiler(engine, store, n_leads=1).compile(library.get("pinned"))
    limited = SkillCompiler(engine, store, n_leads=1, limit=ArtifactLimit(told.append, int(2.5 * one.n_bytes)))
    old = limited.compile(library.get("old"))
    assert told == []
    for number, path in enumerate((one.path, old.path)):
        past = time.time() - 90_000 + number
        os.utime(path, (past, past))
    new = limited.compile(library.get("new"))
    assert (one.path.exists(), old.path.exists(), new.path.exists()) == (True, False, True)
    assert len(told) == 1
    assert "1 file of compiled skills" in told[0]
    assert "KVNOTES_MAX_ARTIFACTS" in told[0]


def test_the_artifact_that_was_just_made_stays_even_where_it_alone_is_too_large(
    tiny_engine: MakeEngine, library: SkillLibrary, tmp_path: Path
) -> None:
    engine, store, told = tiny_engine("llama", n_ctx=4096), ArtifactStore(tmp_path / "artifacts"), list[str]()
    made = SkillCompiler(engine, store, n_leads=1, limit=ArtifactLimit(told.append, 1)).compile(library.get("new"))
    assert made.path.exists()
    assert told == []
