"""The real thing: kvnotes in a terminal (tmux), with the embedded model."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.skills.skill_samples import write_skill

PATIENCE = 120.0
RULES = """\
---
name: shop-rules
description: What to do when somebody brings something back.
---

# Rules of the shop

The refund window is {{refund window|30 days}}. A customer may return an article within the refund window, with the receipt and in
the box that it came in. We pay the price back to the card. We never pay cash. After the refund window we repair, but we do not
pay back. Gifts are exchanged for a voucher. Be polite, say thank you, and write the name of the customer into the book.
"""

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]


class Terminal:
    """A tmux server of its own with one window."""

    def __init__(self, home: Path, columns: int, lines: int) -> None:
        self._home = home
        self._n_started = 0
        self._tmux: list[str] = []
        self._size = ["-x", str(columns), "-y", str(lines)]

    def start(self, command: list[str], env: dict[str, str]) -> None:
        # A server of its own each time: one that ends just now must not be asked.
        self._n_started += 1
        self._tmux = ["tmux", "-S", str(self._home / f"tmux-{self._n_started}"), "-f", "/dev/null"]
        # pytest's readline exports the size of another terminal.
        line = shlex.join(
            ["env", "-u", "COLUMNS", "-u", "LINES", *(f"{key}={value}" for key, value in env.items()), *command]
        )
        # What is printed at the end stays to be read.
        self._run("new-session", "-d", *self._size, f"{line}; echo ended with $?; read _")

    def keys(self, *keys: str) -> None:
        self._run("send-keys", *keys)

    def type(self, text: str) -> None:
        self._run("send-keys", "-l", text)
        self.keys("Enter")

    @property
    def screen(self) -> str:
        return self._run("capture-pane", "-p")

    def until(self, pattern: str) -> re.Match[str]:
        """Wait until the screen shows this."""
        give_up = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self.screen)) is None:
            assert time.monotonic() < give_up, f"{pattern!r} never came:\n{self.screen}"
            time.sleep(0.1)
        return found

    def close(self) -> None:
        if not self._tmux:
            return
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False)

    def _run(self, *arguments: str) -> str:
        done = subprocess.run([*self._tmux, *arguments], capture_output=True, text=True, check=True)
        return done.stdout


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    one = Terminal(tmp_path, 120, 40)
    yield one
    one.close()


def test_a_session_with_the_embedded_model(terminal: Terminal, tmp_path: Path) -> None:
    env = {
        "PYTHONPATH": str(REPOSITORY),
        "HOME": str(tmp_path),
        "TERM": "tmux-256color",
        "KVNOTES_MODELS": "",
        **{f"KVNOTES_{name}_DIR": str(tmp_path / name.lower()) for name in ("CACHE", "DATA", "CONFIG", "LOG")},
    }
    write_skill(tmp_path / "skills" / "shop-rules", RULES)
    command = [sys.executable, "-m", "kvnotes_local", "--skills-dir", str(tmp_path / "skills")]
    terminal.start(command, env)
    terminal.until(r"Start with SmolLM2.*\(Enter\)")
    terminal.keys("Enter")
    terminal.until("Nothing has been said yet")
    terminal.until(r"SmolLM2-135M.* · \[splice\] · KV F16 · context \d")
    terminal.type("Hello there!")
    terminal.until(r"[1-9]\d* prefilled")
    terminal.type("/skill shop-rules")
    terminal.until(r"█ spliced \d{2,3}")
    terminal.type("How long is the refund window?")
    proof = terminal.until(r"(\d{2,3}) spliced · (\d+) repaired · (\d+) prefilled")
    assert int(proof[3]) < 100
    terminal.until(r"30 days")

    terminal.type("/set refund window = 45 days")
    terminal.until(r"Correction: refund window: 45 days")
    terminal.until(r"◆ edited \d")
    terminal.until(r"field\+erratum, \d+")

    terminal.keys("C-q")
    terminal.until(r"ended with 0")
    terminal.close()
    assert "Traceback" not in (tmp_path / "log" / "stderr.log").read_text()

    terminal.start(command, env)
    terminal.until(r"Correction: refund window: 45 days")
    assert "How long is the refund window?" in terminal.screen
    terminal.type("And now, how long?")
    proof = terminal.until(r"(\d+) spliced · (\d+) repaired · (\d+) prefilled")
    terminal.until(r"And now, how long\?(?s:.*)0 spliced · 0 repaired · \d{2} prefilled")
    terminal.keys("C-q")
    terminal.until(r"ended with 0")
    assert "Traceback" not in os.linesep.join(path.read_text() for path in (tmp_path / "log").glob("*.log"))
