"""The virtual environment in .venv: making it, and running pip and programs in it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from _processes import indent, run_logged

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOG = VENV / "setup.log"
LOG_TAIL_LINES = 25
THIS_PYTHON = [sys.version.split()[0], sys.implementation.name]

HINTS = (
    (
        r"CMAKE_C(XX)?_COMPILER|could not find any instance of Visual Studio|'(cc|gcc|c\+\+|g\+\+)'",
        "a C++ compiler is needed. Debian and Ubuntu: `sudo apt install build-essential`; "
        "Fedora: `sudo dnf install gcc-c++`; macOS: `xcode-select --install`; "
        "Windows: the Build Tools for Visual Studio, with C++",
    ),
    (
        r"No space left on device",
        "free some disk space: the build takes 2 GB in the folder for temporary files, .venv 1 GB",
    ),
    (
        r"Killed signal|terminated program cc1plus|out of memory",
        "the compiler ran out of memory: set the environment variable CMAKE_BUILD_PARALLEL_LEVEL=1",
    ),
    (
        r"NewConnectionError|NameResolutionError|name resolution|Max retries exceeded|[Tt]imed? ?out|getaddrinfo",
        "the package index cannot be reached: check the network, and the proxy if there is one",
    ),
    (
        r"No matching distribution found",
        "a package is not to be had for this Python or platform: try another Python, 3.11 or newer",
    ),
)


class SetupError(Exception):
    """Set-up cannot go on; the message says why and what to do."""


def venv_python(os_name: str = os.name) -> Path:
    return VENV / "Scripts" / "python.exe" if os_name == "nt" else VENV / "bin" / "python"


def script_command(python: str, name: str, os_name: str = os.name) -> list[str]:
    """How to start a console script of the environment: through its Python, as #! lines cannot hold every folder."""
    folder = Path(python).parent
    return [str(folder / f"{name}.exe")] if os_name == "nt" else [python, str(folder / name)]


def make_venv() -> None:
    """Keep the environment where it works and is of this Python; else make it anew."""
    try:
        VENV.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=VENV):
            pass
    except OSError as error:
        raise SetupError(
            f"cannot write to {VENV}: {error.strerror or error}\n"
            "What to do: copy the checkout to a folder that you may write to, and run the command there"
        ) from None
    ask = "import pip, sys; print(sys.version.split()[0], sys.implementation.name)"
    with contextlib.suppress(OSError):  # no such program: nothing to keep
        found = subprocess.run([venv_python(), "-c", ask], capture_output=True, text=True, check=False, cwd=ROOT)
        if found.returncode == 0 and found.stdout.split() == THIS_PYTHON:
            return
    if find_spec("venv") is None or find_spec("ensurepip") is None:
        raise SetupError(
            "this Python cannot make a virtual environment with pip in it: its module venv or ensurepip is missing\n"
            "What to do: on Debian and Ubuntu "
            f"`sudo apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv`, "
            "elsewhere install a complete Python; then run the same command again"
        )
    command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=ROOT)
    if made.returncode != 0:
        raise SetupError(f"`{shlex.join(command)}` failed with exit code {made.returncode}:\n{indent(made.stdout)}")


def pip(label: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run pip in the environment; its output goes to the log, whose end is part of the error when it fails."""
    options = ["--disable-pip-version-check", "--no-input"]
    variables = {"PIP_USER": "0", "PIP_PROGRESS_BAR": "off", **(environment or {})}
    start = LOG.stat().st_size if LOG.exists() else 0
    code = run_module(label, ["pip", *options, *arguments], variables)
    if code != 0:
        text = LOG.read_bytes()[start:].decode(errors="replace")
        advice = next((hint for pattern, hint in HINTS if re.search(pattern, text)), f"read {LOG}")
        tail = "\n".join(text.splitlines()[-LOG_TAIL_LINES:])
        raise SetupError(
            f"{label}: pip failed with exit code {code}. The end of {LOG}:\n{indent(tail)}\n"
            f"What to do: {advice}; then run the same command again"
        )


def run_module(label: str, module: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run a module, given with its arguments, in the environment; its output goes to the log. Returns its exit code."""
    # In the checkout: a module in the user's folder may have the name of one that pip needs.
    return run_logged(label, [str(venv_python()), "-m", *module], ROOT, LOG, environment or {})
