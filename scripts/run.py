#!/usr/bin/env python3
"""Sets kvnotes up in .venv beside this checkout's files (once), then starts it with the arguments given.

usage: python3 scripts/run.py [--backend auto|cpu|cuda|metal|vulkan] [kvnotes arguments…]
"""

import sys
from pathlib import Path


def main():
    if sys.version_info < (3, 11):  # noqa: UP036 - this is what tells people so
        sys.exit(f"kvnotes needs Python 3.11 or newer, and this is {sys.version.split()[0]}: start it with a newer one")
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import _setup

    backend, arguments = _setup.take_backend(sys.argv[1:])
    python = _setup.prepare(backend, dev=False)
    _setup.become([*_setup.script_command(python, "kvnotes"), *arguments])


if __name__ == "__main__":
    main()
