"""The example in the docs runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
