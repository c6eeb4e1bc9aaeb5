"""``python -m kvnotes_local`` and the command ``kvnotes``. Ctrl-C ends it in good order from the first moment, before the rest is
imported."""

from __future__ import annotations

import signal
import sys

from kvnotes_local.errors import Interrupted


def interrupt(number: int, frame: object) -> None:
    """The handler of SIGINT as long as nothing has to be stopped first."""
    raise Interrupted


def run() -> None:
    signal.signal(signal.SIGINT, interrupt)
    try:
        from kvnotes_local.cli.main import run as run_commands

        run_commands()
    except Interrupted:
        sys.stderr.write("Stopped.\n")
        sys.exit(1)


if __name__ == "__main__":
    run()
