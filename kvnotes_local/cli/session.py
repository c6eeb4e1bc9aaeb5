"""A session for one command: opened with its options, stopped by signals, closed at its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kvnotes_local.cli.interrupt import cancel_on_interrupt
from kvnotes_local.cli.output import Output
from kvnotes_local.contract.store_type import StoreType
from kvnotes_local.errors import Cancelled
from kvnotes_local.session.engine_options import EngineOptions
from kvnotes_local.session.opening import chosen_model, opener
from kvnotes_local.session.places import Places

if TYPE_CHECKING:
    from kvnotes_local.session.session import Session


@contextmanager
def open_session(
    options: EngineOptions,
    output: Output,
    *,
    skills_dirs: Sequence[Path] = (),
    store_type: StoreType = StoreType.F16,
    n_ctx: int = 0,
) -> Iterator[Session]:
    """Load the model and close it afterwards. ``n_ctx``: a default for ``--n-ctx 0``. Raises KvnotesError."""
    from kvnotes_local.session.session import load  # here: commands that need no model must not pay for it

    model = chosen_model(options, output.note)
    places = Places.usual(cache=options.cache_dir, skills_dirs=skills_dirs)
    stop = threading.Event()
    loaded: list[Session] = []

    def cancel() -> None:
        stop.set()
        for session in loaded:
            session.cancel()

    with cancel_on_interrupt(cancel):
        session = load(
            model.path,
            options.params(n_ctx=n_ctx),
            places,
            opener(places, isolate=options.isolate),
            stop=stop,
            note=output.note,
            store_type=store_type,
        )
        loaded.append(session)
        try:
            if stop.is_set():
                raise Cancelled("Stopped.")
            yield session
        finally:
            session.close()
