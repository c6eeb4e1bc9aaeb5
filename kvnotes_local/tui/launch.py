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
from kvnotes_local.contract.protocol import Engine
from kvnotes_local.errors import UsageError
from kvnotes_local.paths import Paths, ensure_private
from kvnotes_local.session.engine_options import EngineOptions
from kvnotes_local.session.places import Places
from kvnotes_local.tui.app import KvnotesApp
from kvnotes_local.tui.last_session import LastSession
from kvnotes_local.tui.start import Start
from kvnotes_local.tui.workbench.desk import LoadProgress, OpenEngine


def launch(options: EngineOptions, *, skills_dirs: tuple[Path, ...] = (), data_dir: Path | None = None) -> None:
    """Run the app until it is left. Raises KvnotesError for what is wrong before it has begun."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("The screens of kvnotes need a terminal. `kvnotes --help` lists what works without one.")
    from kvnotes_local.models.choice import resolve_model
    from kvnotes_local.models.scan import embedded_model, find_models

    usual = Paths.default()
    places = Places(
        cache=ensure_private(options.cache_dir or usual.cache),
        data=ensure_private(data_dir or usual.data),
        config=usual.config,
        log=ensure_private(usual.log),
        skills_dirs=skills_dirs,
    )
    log_to(places.log / "kvnotes.log")
    start = Start(places, open_engine(places), embedded=embedded_model())
    last = LastSession.load(places.data)
    if options.model is not None:
        params = EngineParams(
            n_ctx=options.n_ctx,
            type_k=options.kv_type.ggml,
            type_v=options.kv_type.ggml,
            n_gpu_layers=options.n_gpu_layers,
            n_threads=options.threads,
        )
        path = resolve_model(options.model, find_models()).path
        start = replace(start, model=path, params=params, chat=last.chat if path == last.model else None)
    elif last.model is not None and last.model.exists():
        start = replace(start, model=last.model, params=last.params, chat=last.chat)
    app = KvnotesApp(replace(start, draft=last.draft))
    keep_terminal_for_the_screen(places.log / "stderr.log")
    app.run(mouse=app.settings.mouse)


def open_engine(places: Places) -> OpenEngine:
    """Loads models in a process of their own: the screens outlive what llama.cpp does not."""

    def open_(path: Path, params: EngineParams, *, progress: LoadProgress, note: Callable[[str], None]) -> Engine:
        # Here: the screens come first, llama.cpp's build is looked at later.
        from kvnotes_local.engine.process.child_engine import ChildEngine
        from kvnotes_local.session.opening import runnable_params

        return ChildEngine(
            path,
            runnable_params(path, params, places.cache, note),
            cache_dir=places.cache,
            log_path=places.log / "llama.log",
            progress=progress,
        )

    return open_


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
