"""Opening a model, the skills and the artifacts for one command."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvnotes_local.cli.interrupt import cancel_on_interrupt
from kvnotes_local.cli.output import Output
from kvnotes_local.contract.store_type import StoreType
from kvnotes_local.errors import Cancelled
from kvnotes_local.paths import Paths, ensure_private
from kvnotes_local.session.engine_options import EngineOptions
from kvnotes_local.session.opening import artifact_limit, chosen_model, engine_class, runnable_params
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.library import SkillLibrary
from kvnotes_local.skills.verdicts import VerdictStore

if TYPE_CHECKING:
    from kvnotes_local.contract.params import EngineParams
    from kvnotes_local.contract.protocol import Engine
    from kvnotes_local.notebook.proof import PrefillSpeed
    from kvnotes_local.skills.artifact_limit import ArtifactLimit
    from kvnotes_local.skills.compiler import SkillCompiler


@dataclass(frozen=True)
class Session:
    """A loaded model with what skills need. ``open_other``: another engine of the same model, with changed EngineParams.
    ``interrupted``: set by a stop signal, also where there was nothing to stop at that moment. ``speed``: what is known of how
    fast the model reads."""

    engine: Engine
    library: SkillLibrary
    compiler: SkillCompiler
    store: ArtifactStore
    verdicts: VerdictStore
    open_other: Callable[..., AbstractContextManager[Engine]]
    interrupted: threading.Event
    speed: PrefillSpeed
    limit: ArtifactLimit

    def compiler_for(self, store_type: StoreType) -> SkillCompiler:
        """A compiler whose artifacts are stored in another type."""
        from kvnotes_local.skills.compiler import SkillCompiler

        return SkillCompiler(self.engine, self.store, store_type=store_type, verdicts=self.verdicts, limit=self.limit)


def cache_directory(options: EngineOptions) -> Path:
    return ensure_private(options.cache_dir or Paths.default().cache)


def artifact_store(options: EngineOptions) -> ArtifactStore:
    return ArtifactStore(cache_directory(options) / "artifacts")


def verdict_store(options: EngineOptions) -> VerdictStore:
    return VerdictStore(cache_directory(options) / "verdicts")


@contextmanager
def open_session(
    options: EngineOptions,
    output: Output,
    *,
    skills_dirs: Sequence[Path] = (),
    store_type: StoreType = StoreType.F16,
    n_ctx: int | None = None,
) -> Iterator[Session]:
    """Load the model and close it afterwards. ``n_ctx``: a default for ``--n-ctx 0``. Raises KvnotesError."""
    # Imported here: commands that need no model must not pay for llama.cpp's libraries.
    from kvnotes_local.contract.params import EngineParams
    from kvnotes_local.notebook.proof import PrefillSpeed
    from kvnotes_local.skills.compiler import SkillCompiler
    from kvnotes_local.skills.speeds import SpeedMemory

    limit = artifact_limit(output.note)
    found = chosen_model(options, output.note)
    cache = cache_directory(options)
    params = runnable_params(
        found.path,
        EngineParams(
            n_ctx=options.n_ctx or n_ctx or 0,
            type_k=options.kv_type.ggml,
            type_v=options.kv_type.ggml,
            n_gpu_layers=options.n_gpu_layers,
            n_threads=options.threads,
            extra_buffers=options.fast_buffers,
        ),
        cache,
        output.note,
    )
    stop = threading.Event()
    loaded: list[Engine] = []

    def cancel() -> None:
        stop.set()
        for one in loaded:
            one.cancel()

    with cancel_on_interrupt(cancel):

        def open_engine(params: EngineParams) -> Engine:
            engine = engine_class(options)(
                found.path,
                params,
                cache_dir=cache,
                log_path=Paths.default().log / "llama.log",
                progress=lambda fraction: not stop.is_set(),
            )
            loaded.append(engine)
            return engine

        @contextmanager
        def open_other(**changes: object) -> Iterator[Engine]:
            other = open_engine(replace(params, **changes))  # type: ignore[arg-type]
            try:
                yield other
            finally:
                loaded.remove(other)
                other.close()

        engine = open_engine(params)
        try:
            if stop.is_set():
                raise Cancelled("Stopped.")
            store, verdicts = artifact_store(options), verdict_store(options)
            speeds = SpeedMemory(cache)
            known = speeds.get(engine.info.fingerprint)
            speed = PrefillSpeed(known.prefill if known is not None else None)
            yield Session(
                engine=engine,
                library=SkillLibrary.default(skills_dirs),
                compiler=SkillCompiler(engine, store, store_type=store_type, verdicts=verdicts, limit=limit),
                limit=limit,
                store=store,
                verdicts=verdicts,
                open_other=open_other,
                interrupted=stop,
                speed=speed,
            )
            speeds.learn_prefill(engine.info.fingerprint, speed.measured)
        finally:
            engine.close()
