#!/usr/bin/env python3
"""Sets the checkout up as run.py does, with the tools for development, then runs its tests from its top folder.

usage: python3 scripts/test.py [--lint] [--backend NAME] [pytest arguments...]

  --lint           run ruff, mypy and import-linter first; all of them run, whatever fails
  --backend NAME   what llama.cpp is built for: auto, cpu, cuda, metal or vulkan; without it as in run.py

All other arguments go to pytest; without any, the whole suite runs on all cores, one process each. Its own options:
.venv/bin/python -m pytest --help
"""

import sys
from pathlib import Path


def main():
    if sys.version_info < (3, 11):  # noqa: UP036 - this is what tells people so
        sys.exit(f"kvnotes needs Python 3.11 or newer, and this is {sys.version.split()[0]}: start it with a newer one")
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import _processes
    import _setup
    import _venv

    backend, arguments = _setup.take_backend(sys.argv[1:])
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    python = _setup.prepare(backend, dev=True)
    linters = []
    if "--lint" in arguments:
        arguments.remove("--lint")
        linters = [
            [python, "-m", "ruff", "check", "."],
            [python, "-m", "ruff", "format", "--check", "."],
            [python, "-m", "mypy"],
            _venv.script_command(python, "lint-imports"),
        ]
    arguments = arguments or ["-n", "auto", "--dist", "loadfile"]
    return _processes.run_all(linters, [python, "-m", "pytest", *arguments], _venv.ROOT)


if __name__ == "__main__":
    sys.exit(main())
