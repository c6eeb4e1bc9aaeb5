"""``python -m kvnotes_local`` and ``kvnotes``: commands, and the screens where there is none. Ctrl-C and `kill` end it in good
order from the first moment, before the rest is imported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvnotes_local.errors import Interrupted
from kvnotes_local.stop_signals import exit_code, interrupt, set_handlers

if TYPE_CHECKING:
    from kvnotes_local.session.engine_options import EngineOptions


def open_screens(options: EngineOptions, skills_dirs: tuple[Path, ...], data_dir: Path | None) -> None:
    """Stands above all layers, so that the commands need not know of the screens."""
    from kvnotes_local.tui.launch import launch

    launch(options, skills_dirs=skills_dirs, data_dir=data_dir)


def run() -> None:
    set_handlers(interrupt)
    try:
        from kvnotes_local.cli.main import run as run_commands

        run_commands(open_screens)
    except Interrupted:
        sys.stderr.write("Stopped.\n")
        sys.exit(exit_code())


if __name__ == "__main__":
    run()
