"""Starting the app in a terminal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from logging.handlers import RotatingFileHandler
from pathlib import Path

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.contract.protocol import Engine, LoadProgress
from kvnotes_local.errors import UsageError
from kvnotes_local.paths import ensure_private
from kvnotes_local.session.engine_options import EngineOptions
from kvnotes_local.session.opening import OpenEngine, opener
from kvnotes_local.session.places import Places
from kvnotes_local.tui.app import KvnotesApp
from kvnotes_local.tui.last_session import LastSession
from kvnotes_local.tui.settings import SettingsFile
from kvnotes_local.tui.start import Start


def launch(options: EngineOptions, *, skills_dirs: tuple[Path, ...] = (), data_dir: Path | None = None) -> None:
    """Run the app until it is left. Raises KvnotesError for what is wrong before it has begun."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("The screens of kvnotes need a terminal. `kvnotes --help` lists what works without one.")
    from kvnotes_local.models.choice import resolve_model
    from kvnotes_local.models.scan import embedded_model, find_models

    places = Places.usual(cache=options.cache_dir, data=data_dir, skills_dirs=skills_dirs)
    for folder in (places.cache, places.data, places.log):
        ensure_private(folder)
    log_to(places.log / "kvnotes.log")
    start = Start(places, open_engine(places), embedded=embedded_model())
    last = LastSession.load(places.data)
    if options.model is not None:
        path = resolve_model(options.model, find_models()).path
        start = replace(start, model=path, params=options.params(), chat=last.chat if path == last.model else None)
    elif last.model is not None and last.model.exists():
        start = replace(start, model=last.model, params=last.params, chat=last.chat)
    app = KvnotesApp(replace(start, draft=last.draft))
    keep_terminal_for_the_screen(places.log / "stderr.log")
    app.run(mouse=app.settings.mouse)


def open_engine(places: Places) -> OpenEngine:
    """Loads models in a process of their own: the screens outlive what llama.cpp does not. What was not asked for is as
    the settings say."""
    open_ = opener(places, isolate=True)

    def with_settings(
        path: Path, params: EngineParams, *, progress: LoadProgress, note: Callable[[str], None]
    ) -> Engine:
        settings, _ = SettingsFile(places.settings).load()  # told what is wrong with them already
        params = replace(params, n_sequences=params.n_sequences or settings.sequences)
        return open_(path, params, progress=progress, note=note)

    return with_settings


def log_to(path: Path) -> None:
    """Send what this program logs to a file, begun anew when it is large."""
    handler = RotatingFileHandler(path, maxBytes=1 << 20, backupCount=1, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("kvnotes_local")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def keep_terminal_for_the_screen(log_path: Path) -> None:
    """Send what is printed to file descriptor 2 to a log, while Textual draws on a duplicate of it.

    llama.cpp and its GPU drivers print to it directly, and the engine redirects it while a model loads.
    """
    if os.name != "posix" or not sys.stderr.isatty():
        return
    terminal = os.dup(2)
    sys.__stderr__ = os.fdopen(terminal, "w", encoding="utf-8", errors="replace")  # type: ignore[misc]
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)
