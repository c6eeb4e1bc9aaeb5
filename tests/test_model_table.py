"""The table in docs/models.md is what is measured now."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import REPOSITORY


def test_the_table_of_models_is_not_stale() -> None:
    command = [sys.executable, str(REPOSITORY / "scripts" / "model_table.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert (REPOSITORY / "docs" / "models.md").read_text("utf-8").count("| splice |") >= 20
