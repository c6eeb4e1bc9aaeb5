"""llama.cpp's death cannot take the screens, since it is never loaded into their process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY
from tests.zoo import zoo_model


def test_no_request_of_the_file_thread_loads_llama_cpp(tmp_path: Path, zoo_directory: Path) -> None:
    model = zoo_model("llama", zoo_directory)
    command = [sys.executable, "-m", "tests.tui.file_thread", str(tmp_path), str(model)]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout.splitlines()[-1])
    assert said["left_out"] == [], "kinds of requests that tests/tui/file_thread.py does not carry out yet"
    assert {after: signs for after, signs in said["found"].items() if signs} == {}
