"""Which model is meant, in which engine it runs, and how."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kvnotes_local.errors import EngineError
from kvnotes_local.models.choice import resolve_model
from kvnotes_local.models.default import DefaultModel
from kvnotes_local.models.files import FoundModel
from kvnotes_local.models.scan import find_models
from kvnotes_local.session.engine_options import EngineOptions
from kvnotes_local.session.places import Places
from kvnotes_local.session.quantities import parse_bytes
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from kvnotes_local.contract.params import EngineParams
    from kvnotes_local.contract.protocol import Engine, LoadProgress
    from kvnotes_local.engine.llama_engine import LlamaEngine
    from kvnotes_local.engine.process.child_engine import ChildEngine
    from kvnotes_local.skills.artifact_limit import ArtifactLimit


class OpenEngine(Protocol):
    """Loads a model; ``progress`` (0 … 1) returns False to cancel, ``note`` is told in a sentence what users should know."""

    def __call__(
        self, path: Path, params: EngineParams, *, progress: LoadProgress, note: Callable[[str], None]
    ) -> Engine: ...


def artifact_limit(tell: Callable[[str], None]) -> ArtifactLimit:
    """As the environment says. Raises UsageError."""
    from kvnotes_local.skills.artifact_limit import DEFAULT_MAX_BYTES, VARIABLE, ArtifactLimit

    said = os.environ.get(VARIABLE)
    return ArtifactLimit(tell, parse_bytes(said) if said else DEFAULT_MAX_BYTES)


def chosen_model(options: EngineOptions, note: Callable[[str], None] | None = None) -> FoundModel:
    """The model that ``--model`` means, or the default. ``note`` is told which one that is where there are several.

    Raises ModelError.
    """
    models = find_models()
    if options.model is not None:
        return resolve_model(options.model, models)
    model = DefaultModel.default().take(models)
    if note is not None and len(models) > 1:
        note(
            f"Model: {model.name}, the default. --model takes another, `kvnotes models default NAME` makes it the default."
        )
    return model


def engine_class(*, isolate: bool) -> type[LlamaEngine] | type[ChildEngine]:
    """The engine in this process, or to ``isolate`` it the one in a process of its own. Raises EngineError where llama.cpp
    cannot be loaded."""
    if isolate:
        from kvnotes_local.engine.process.child_engine import ChildEngine

        return ChildEngine
    try:
        from kvnotes_local.engine.llama_engine import LlamaEngine
    except (ImportError, OSError, RuntimeError) as error:  # what llama-cpp-python raises where its libraries are broken
        raise EngineError(f"llama.cpp cannot be loaded: {error}. `kvnotes doctor` says what to do.") from error
    return LlamaEngine


def opener(places: Places, *, isolate: bool) -> OpenEngine:
    """Loads models as this build can run them, see ``engine_class`` and ``runnable_params``."""

    def open_(path: Path, params: EngineParams, *, progress: LoadProgress, note: Callable[[str], None]) -> Engine:
        return engine_class(isolate=isolate)(
            path,
            runnable_params(path, params, places.cache, note),
            cache_dir=places.cache,
            log_path=places.llama_log,
            progress=progress,
        )

    return open_


def runnable_params(path: Path, params: EngineParams, cache: Path, note: Callable[[str], None]) -> EngineParams:
    """The parameters as this build can run the model: with a context size, and without fast buffers where they crash.

    ``note`` is told what makes it slow. Raises ModelError.
    """
    from kvnotes_local.contract.params import DEFAULT_N_CTX
    from kvnotes_local.engine.llama.build_check import extra_buffers_safe
    from kvnotes_local.models.gguf_reader import read_gguf_header
    from kvnotes_local.models.scan import embedded_model

    header = read_gguf_header(path)
    check = extra_buffers_safe(embedded_model() or path, cache)
    if not check.safe and params.extra_buffers:
        note(f"Fast buffers are off: {check.reason}. {check.cure}")
    n_ctx = params.n_ctx or min(DEFAULT_N_CTX, header.context_length or DEFAULT_N_CTX)
    if 0 < header.context_length < n_ctx:
        note(
            f"{path.stem} was trained for {counted(header.context_length, 'token')}; beyond them, up to the {n_ctx:,} of this "
            "context, its answers get worse."
        )
    return replace(params, n_ctx=n_ctx, extra_buffers=params.extra_buffers and check.safe)
