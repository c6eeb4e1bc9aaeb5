"""``python -m kvnotes_local`` and the command ``kvnotes``. Ctrl-C and `kill` end it in good order from the first moment, before
the rest is imported."""

from __future__ import annotations

import sys

from kvnotes_local.errors import Interrupted
from kvnotes_local.stop_signals import exit_code, interrupt, set_handlers


def run() -> None:
    set_handlers(interrupt)
    try:
        from kvnotes_local.cli.main import run as run_commands

        run_commands()
    except Interrupted:
        sys.stderr.write("Stopped.\n")
        sys.exit(exit_code())


if __name__ == "__main__":
    run()
