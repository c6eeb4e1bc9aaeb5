"""Running things: with a log and signs of life, ended together, one set-up at a time; what it says, what it writes down.

Knows nothing of kvnotes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

TERMINAL_TICK_SECONDS, PLAIN_TICK_SECONDS = 1, 30


def become(command: list[str]) -> NoReturn:
    """Replace this process by the command; on Windows, which cannot, wait for it and exit with its code."""
    if os.name != "nt":
        os.execv(command[0], command)
    process = subprocess.Popen(command)
    while True:
        with contextlib.suppress(KeyboardInterrupt):  # the child gets Ctrl-C too, and it decides what that means
            sys.exit(process.wait())


def run_all(checks: Sequence[list[str]], last: list[str], folder: Path) -> int:
    """Run every command in a folder, whatever fails; exit with the code of ``last``, else of a failed check."""
    failed = 0
    for command in checks:
        say(f"$ {shlex.join(Path(part).name if os.sep in part else part for part in command)}")
        failed = subprocess.call(command, cwd=folder) or failed
    return subprocess.call(last, cwd=folder) or failed


def run_logged(label: str, command: Sequence[str], folder: Path, log_file: Path, environment: Mapping[str, str]) -> int:
    """Run a command with its output in the log and a line that shows it lives; everything it started ends with it."""
    on_terminal, began, next_tick = sys.stderr.isatty(), time.monotonic(), 0.0
    with log_file.open("ab") as log:
        log.write(f"\n$ {shlex.join(command)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=None if os.name == "nt" else 0,
        )
        try:
            while process.poll() is None:
                elapsed = time.monotonic() - began
                if elapsed >= next_tick:
                    show_alive(label, elapsed, on_terminal)
                    next_tick += TERMINAL_TICK_SECONDS if on_terminal else PLAIN_TICK_SECONDS
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(1.0, next_tick - elapsed if next_tick > elapsed else 0.01))
        finally:
            if process.poll() is None:
                end_group(process)
            if on_terminal:
                sys.stderr.write("\n")
    return process.returncode


def show_alive(label: str, elapsed: float, on_terminal: bool) -> None:
    minutes, seconds = divmod(int(elapsed), 60)
    if on_terminal:
        line = f"{label} … {minutes}:{seconds:02d} "
        sys.stderr.write("\r" + line[: shutil.get_terminal_size().columns - 1])  # one that wraps cannot be rewritten
        sys.stderr.flush()
    else:
        say(f"{label} …" + (f" {minutes}:{seconds:02d}" if elapsed >= 1 else ""))


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Stop pip and the compilers that it started: politely, then not."""
    if os.name == "nt":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def turn_signals_into_exits() -> Iterator[None]:
    """A closed terminal or a kill ends the compilers too, instead of leaving them at work."""

    def leave(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = [(number, signal.signal(number, leave)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextlib.contextmanager
def only_one_set_up(checkout: Path) -> Iterator[None]:
    """Wait while another process sets the checkout up (not on Windows, nor where the file system has no locks)."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    folder = os.open(checkout, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another set-up of this checkout is at work; waiting for it")
                fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def read_json(path: Path) -> dict[str, Any]:
    """What write_json wrote; empty where there is nothing or something else."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(content), encoding="utf-8")
    draft.replace(path)


def indent(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
