"""scripts/check_templates.py says of each template what came out, and fails when one is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_CHAT = "{{ functions | length }}"
NO_TURNS = "{{ messages[-1].content | upper }}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, template in {"chatml": CHATML, "broken": NO_CHAT, "capitals": NO_TURNS}.items():
        (tmp_path / f"{name}.jinja").write_text(template, "utf-8")
    return tmp_path


def check(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "scripts" / "check_templates.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_one_line_a_template_and_the_counts(folder: Path) -> None:
    done = check(folder)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert lines[0] == "broken: renders no plain chat"
    assert lines[1].startswith("capitals: renders no plain chat")
    assert lines[2] == "chatml: exact"
    assert lines[3] == "3 templates, of which 1 render a plain chat: 1 exact, 0 placed, 0 plain, 0 wrong"


def test_the_same_as_json_and_as_a_table(folder: Path) -> None:
    told = json.loads(check(folder, "--json").stdout)
    assert {name: one["result"] for name, one in told.items()} == {
        "broken": "renders no plain chat",
        "capitals": "renders no plain chat",
        "chatml": "exact",
    }
    assert "| chatml | exact |  |" in check(folder, "--markdown").stdout.splitlines()


def test_a_folder_without_templates_is_told(tmp_path: Path) -> None:
    done = check(tmp_path)
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
