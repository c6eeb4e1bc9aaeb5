#!/usr/bin/env python3
"""Sets kvnotes up in .venv beside this checkout's files (once), then starts it with the arguments given.

usage: python3 scripts/run.py [--backend NAME] [kvnotes arguments...]

  --backend NAME   what llama.cpp is built for: auto, cpu, cuda, metal or vulkan. Without it: what it was built for
                   before, at first auto, which chooses for this machine and says why.
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
    if arguments[:1] in (["-h"], ["--help"]):  # behind a command it is kvnotes' affair
        print(__doc__, flush=True)
        if not _setup.is_ready(None, dev=False):  # who asks for help does not ask for a build
            print(
                "kvnotes' own help stands here once it is set up; any command does that: python3 scripts/run.py doctor"
            )
            return
        backend = None
    python = _setup.prepare(backend, dev=False)
    _processes.become([*_venv.script_command(python, "kvnotes"), *arguments])


if __name__ == "__main__":
    main()
