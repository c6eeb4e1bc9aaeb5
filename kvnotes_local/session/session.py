"""A loaded model with what skills need: opened and closed the same way for commands and for screens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.contract.protocol import Engine, LoadProgress
from kvnotes_local.contract.store_type import StoreType
from kvnotes_local.notebook.listening import OnText
from kvnotes_local.notebook.on_full import OnFull
from kvnotes_local.notebook.proof import PrefillSpeed
from kvnotes_local.notebook.stored_chat import ChatOptions
from kvnotes_local.session.opening import OpenEngine, artifact_limit
from kvnotes_local.session.places import Places
from kvnotes_local.skills.artifact_limit import ArtifactLimit
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary
from kvnotes_local.skills.speeds import SpeedMemory
from kvnotes_local.skills.verdicts import VerdictStore


@dataclass
class Session:
    """A loaded model with what skills need. ``path`` and ``params``: as it was asked for. ``stop``: set when the user wants what
    is running to stop, also where there was nothing to stop at that moment. ``speed``: what is known of how fast the model
    reads."""

    path: Path
    params: EngineParams
    places: Places
    engine: Engine
    library: SkillLibrary
    store: ArtifactStore
    verdicts: VerdictStore
    limit: ArtifactLimit
    compiler: SkillCompiler
    speed: PrefillSpeed
    stop: threading.Event
    open_engine: OpenEngine
    _others: list[Engine] = field(default_factory=list)

    def compiler_for(self, store_type: StoreType) -> SkillCompiler:
        """A compiler whose artifacts are stored in another type."""
        return SkillCompiler(self.engine, self.store, store_type=store_type, verdicts=self.verdicts, limit=self.limit)

    def chat_options(
        self,
        *,
        on_notice: OnText,
        system: str | None = None,
        values: Mapping[str, str] | None = None,
        on_full: OnFull | None = None,
    ) -> ChatOptions:
        """For chats with this model and its skills."""
        return ChatOptions(
            library=self.library,
            compiler=self.compiler,
            system=system,
            values=values,
            on_notice=on_notice,
            on_full=on_full,
            speed=self.speed,
        )

    @contextmanager
    def open_other(self, **changes: object) -> Iterator[Engine]:
        """Another engine of the same model, with changed EngineParams, for as long as it is needed."""
        other = self.open_engine(
            self.path,
            replace(self.params, **changes),  # type: ignore[arg-type]
            progress=lambda fraction: not self.stop.is_set(),
            note=lambda text: None,  # it was said when the model was loaded
        )
        self._others.append(other)
        try:
            yield other
        finally:
            self._others.remove(other)
            other.close()

    def cancel(self) -> None:
        """Stop what the engines do, from any thread."""
        for engine in (*self._others, self.engine):
            engine.cancel()

    def close(self) -> None:
        """Give the model back, and remember how fast it read."""
        fingerprint = self.engine.info.fingerprint
        self.engine.close()
        SpeedMemory(self.places.cache).learn_prefill(fingerprint, self.speed.measured)


def load(
    path: Path,
    params: EngineParams,
    places: Places,
    open_engine: OpenEngine,
    *,
    stop: threading.Event,
    note: Callable[[str], None],
    progress: LoadProgress | None = None,
    store_type: StoreType = StoreType.F16,
) -> Session:
    """Load a model. ``stop``, where it is set, cancels. ``progress``: None where nobody watches. Raises KvnotesError."""
    limit = artifact_limit(note)
    store, verdicts, library = places.artifact_store(), places.verdict_store(), places.library()
    engine = open_engine(path, params, progress=progress or (lambda fraction: not stop.is_set()), note=note)
    known = SpeedMemory(places.cache).get(engine.info.fingerprint)
    return Session(
        path=path,
        params=params,
        places=places,
        engine=engine,
        library=library,
        store=store,
        verdicts=verdicts,
        limit=limit,
        compiler=SkillCompiler(engine, store, store_type=store_type, verdicts=verdicts, limit=limit),
        speed=PrefillSpeed(known.prefill if known is not None else None),
        stop=stop,
        open_engine=open_engine,
    )
