#!/usr/bin/env python3
"""Sets the checkout up as run.py does, with the tools for development, then runs its tests from its top folder.

usage: python3 scripts/test.py [--lint] [--backend auto|cpu|cuda|metal|vulkan] [pytest arguments…]

With --lint, ruff, mypy and import-linter run first; all of them run, whatever fails.
"""

import sys
from pathlib import Path


def main():
    if sys.version_info < (3, 11):  # noqa: UP036 - this is what tells people so
        sys.exit(f"kvnotes needs Python 3.11 or newer, and this is {sys.version.split()[0]}: start it with a newer one")
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import _setup

    backend, arguments = _setup.take_backend(sys.argv[1:])
    python = _setup.prepare(backend, dev=True)
    linters = []
    if "--lint" in arguments:
        arguments.remove("--lint")
        linters = [
            [python, "-m", "ruff", "check", "."],
            [python, "-m", "ruff", "format", "--check", "."],
            [python, "-m", "mypy"],
            _setup.script_command(python, "lint-imports"),
        ]
    return _setup.run_all(linters, [python, "-m", "pytest", *arguments])


if __name__ == "__main__":
    sys.exit(main())
