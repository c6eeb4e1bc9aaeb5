"""Ctrl-C, `kill` and a closed terminal: the command stops at once, and what was said so far is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvnotes_local.cli.output import Output
from kvnotes_local.cli.progress import step_progress
from kvnotes_local.errors import Cancelled
from kvnotes_local.notebook.store.chats import ChatStore
from tests.conftest import Run
from tests.zoo import zoo_model

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(sys.platform == "win32", reason="sends signals to one process, which Windows cannot"),
]

KVNOTES = [sys.executable, "-m", "kvnotes_local"]
LONG = ["ask", "Count from one to a thousand in words.", "--chat", "new", "--max-tokens", "2000"]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    places = {f"KVNOTES_{name.upper()}_DIR": str(tmp_path / name) for name in ("cache", "data", "log", "config")}
    return {**os.environ, **places}


def assert_kept(tmp_path: Path, said: str, kvnotes: Callable[..., Run]) -> None:
    store = ChatStore(tmp_path / "data" / "chats.sqlite")
    chat = store.list()[0].id
    answer = store.load(chat).segments[-1]
    assert answer.stopped
    assert said[:3]
    assert answer.text.strip().startswith(said[:3])
    run = kvnotes("ask", "Go on", "--chat", chat, "--max-tokens", 1, "--json")
    assert json.loads(run.out)["restored"], run.err


@pytest.mark.parametrize(
    ("number", "code", "options"),
    [
        ("SIGINT", 1, []),
        ("SIGTERM", 143, []),
        ("SIGTERM", 143, ["--isolate"]),
    ],
)
def test_a_signal_stops_at_once_and_keeps_what_was_said(
    tmp_path: Path, env: dict[str, str], kvnotes: Callable[..., Run], number: str, code: int, options: list[str]
) -> None:
    process = subprocess.Popen(
        [*KVNOTES, *LONG, *options],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # ``communicate`` would not see what a buffer holds
    )
    assert process.stdout is not None
    first = process.stdout.read(1)  # the answer has begun
    for _ in range(1 if number == "SIGINT" else 3):  # others come several times without anybody wanting it
        process.send_signal(getattr(signal, number))
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert err.strip().splitlines()[-1] == b"Stopped."
    assert b"Traceback" not in err
    assert_kept(tmp_path, (first + out).decode().strip(), kvnotes)


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 1), ("SIGTERM", 143)])
def test_a_signal_while_compiling_leaves_no_half_artifact(
    tmp_path: Path, env: dict[str, str], number: str, code: int
) -> None:
    process = subprocess.Popen(
        [*KVNOTES, "skills", "compile", "refund-policy"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    measured = tmp_path / "cache" / "rotations"
    while not (measured.exists() and any(measured.iterdir())):  # the model is loaded: compiling begins
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(getattr(signal, number))
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert b"Stopped." in err
    assert b"Traceback" not in err
    assert not list((tmp_path / "cache" / "artifacts").glob("*/*"))


@pytest.mark.parametrize(
    "command",
    [
        ["verify", "night-clerk", "python-style", "--questions", "1"],
        ["probe", "--cases", "12"],
        ["bench", "--length", "256", "--length", "100000", "--repeat", "500"],
    ],
    ids=lambda command: command[0],
)
def test_one_ctrl_c_ends_a_measurement_and_all_that_it_would_go_on_with(
    zoo_directory: Path, env: dict[str, str], command: list[str]
) -> None:
    how = ["--model", str(zoo_model("qwen2", zoo_directory)), "--threads", "1", "--n-ctx", "8192", "--json"]
    process = subprocess.Popen([*KVNOTES, *command, *how], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None
    while b"trained for" in process.stderr.readline():  # then each says something of its first piece of work
        pass
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert out == b""
    assert err.strip().splitlines()[-1] == b"Stopped."


def test_a_signal_between_two_calls_of_the_engine_is_heeded_at_the_next_step() -> None:
    interrupted = threading.Event()
    with step_progress(Output(quiet=True), interrupted) as step:
        step("one thing")
        interrupted.set()
        with pytest.raises(Cancelled):
            step("the next")


def test_a_closed_terminal_costs_nothing(tmp_path: Path, env: dict[str, str], kvnotes: Callable[..., Run]) -> None:
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*KVNOTES, *LONG, "--quiet"], env)
    said = b""
    while len(said.strip()) < 3:
        said += os.read(terminal, 100)
    os.close(terminal)  # the kernel sends SIGHUP, and writing fails from now on
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert_kept(tmp_path, said.decode().strip(), kvnotes)


def test_a_command_under_nohup_goes_on(tmp_path: Path, env: dict[str, str]) -> None:
    ask = ["ask", "Count from one to twenty.", "--max-tokens", "20", "--json"]
    command = [sys.executable, "-c", "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
               "os.execv(sys.argv[1], sys.argv[1:])", *KVNOTES, *ask]  # fmt: skip
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    measured = tmp_path / "cache" / "rotations"
    while not (measured.exists() and any(measured.iterdir())):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["stop_reason"] != "stopped"
