"""``--isolate``: llama.cpp in a process of its own, and nothing else changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Run
from tests.zoo import zoo_model

Kvnotes = Callable[..., Run]


def test_the_same_answer_from_a_process_of_its_own(kvnotes: Kvnotes, tmp_path: Path, zoo_directory: Path) -> None:
    folder = tmp_path / "skills" / "lamp"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: lamp\ndescription: d\n---\n" + "The lamp is green. " * 10)
    model = ("--model", zoo_model("llama", zoo_directory), "--n-ctx", 1024, "--threads", 1)
    ask = ("ask", "Hi", "--skill", "lamp", "--skills-dir", folder.parent, *model, "--max-tokens", 20, "--json")
    apart = kvnotes(*ask, "--isolate")
    here = kvnotes(*ask)
    assert (apart.code, here.code) == (0, 0), apart.err + here.err
    assert json.loads(apart.out)["reply"] == json.loads(here.out)["reply"]
    assert json.loads(apart.out)["tokens"] == json.loads(here.out)["tokens"]
    assert "llama" in (tmp_path / "log" / "llama.log").read_text()
    refused = kvnotes("ask", "Hi", "--isolate", *model[:2], "--n-ctx", 2_000_000_000)
    assert refused.code == 1
    assert "memory" in refused.err
    assert "Traceback" not in refused.err
