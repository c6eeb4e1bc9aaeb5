"""The example in the docs runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvnotes_local.chat_format.format import PLAIN_FORMAT
from tests.conftest import REPOSITORY


@pytest.mark.model
def test_the_python_example_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "python.md").read_text("utf-8"), re.DOTALL)
    env = {**os.environ, "KVNOTES_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "spliced" in done.stdout


def test_every_test_that_the_table_of_faults_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (REPOSITORY / "docs" / "faults.md").read_text("utf-8")))
    sources = (path.read_text("utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py"))
    there = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}
    assert len(named) > 30
    assert named <= there, named - there


def test_the_readme_names_every_variable_that_moves_something() -> None:
    sources = (path.read_text("utf-8") for path in (REPOSITORY / "kvnotes_local").rglob("*.py"))
    used = {name for source in sources for name in re.findall(r"KVNOTES_[A-Z]+(?:_DIR)?\b", source)}
    section = (REPOSITORY / "README.md").read_text("utf-8").partition("## Where data lives")[2].partition("\n## ")[0]
    assert len(used) >= 5
    assert used - set(re.findall(r"KVNOTES_\w+", section)) == set()


def test_the_plain_format_is_the_one_that_models_without_a_template_get() -> None:
    section = (REPOSITORY / "docs" / "models.md").read_text("utf-8").partition("## Models without a chat template")[2]
    (shown,) = re.findall(r"```\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    plain = PLAIN_FORMAT
    turns = ((plain.system, "{system}"), (plain.user, "{question}"), (plain.assistant, "{answer}"))
    assert shown == plain.head + "".join(turn.open + text + turn.close for turn, text in turns)
    for text in plain.stop_texts:
        assert f"`{text.strip()}`" in section
