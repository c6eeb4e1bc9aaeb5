"""Shared parts of the tests: models, engines, and the command line as users run it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.engine.process.child_engine import ChildEngine
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.models.scan import embedded_model
from tests.zoo import zoo_model

REPOSITORY = Path(__file__).parent.parent


def pytest_configure() -> None:
    """A process of several keeps to one core, and so does what it starts: threads that share a core wait for one another."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


KEPT_VARIABLES = {
    *("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
    *("LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TEMP", "TMP"),
    *("SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT"),
}


@pytest.fixture(scope="session", autouse=True)
def plain_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests, and what they start, see no settings of whoever runs them: no variables that matter, an empty home."""
    home = str(tmp_path_factory.mktemp("home"))
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - KEPT_VARIABLES:
            if not name.startswith(("PYTEST_", "COV_", "COVERAGE_")) and name != "KVNOTES_UPDATE_SNAPSHOTS":
                patch.delenv(name)
        patch.setenv("HOME", home)
        patch.setenv("USERPROFILE", home)
        patch.setenv("OLLAMA_MODELS", home)  # its other place is outside of any home
        yield


@pytest.fixture(scope="session")
def zoo_directory(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return Path(pytestconfig.cache.mkdir("zoo"))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    path = embedded_model()
    assert path is not None, "the embedded model is missing: python3 scripts/test.py installs it"
    return path


@pytest.fixture(scope="session")
def measurements(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where fingerprints and measured rotations are remembered during one run."""
    return tmp_path_factory.mktemp("measurements")


AnyEngine = LlamaEngine | ChildEngine
MakeEngine = Callable[..., AnyEngine]


@pytest.fixture
def engine_class() -> type[AnyEngine]:
    """What ``tiny_engine`` makes; ``both_engines`` overrides it."""
    return LlamaEngine


both_engines = pytest.mark.parametrize("engine_class", [LlamaEngine, ChildEngine], ids=["here", "apart"])
"""For tests of what has to hold for the engine in a process of its own as well."""


@pytest.fixture
def tiny_engine(zoo_directory: Path, measurements: Path, engine_class: type[AnyEngine]) -> Iterator[MakeEngine]:
    """Makes engines of zoo models: ``tiny_engine("qwen2", kv_type=GGMLType.Q8_0)``; closed after the test."""
    engines: list[AnyEngine] = []

    def make(
        name: str = "llama", *, kv_type: GGMLType = GGMLType.F32, n_ctx: int = 1024, **params: object
    ) -> AnyEngine:
        engine = engine_class(
            zoo_model(name, zoo_directory),
            EngineParams(n_ctx=n_ctx, type_k=kv_type, type_v=kv_type, n_threads=1, **params),  # type: ignore[arg-type]
            cache_dir=measurements,
        )
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


@dataclass(frozen=True)
class Run:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def kvnotes(tmp_path: Path) -> Callable[..., Run]:
    """Runs ``kvnotes`` in a process and a home of its own: ``kvnotes("skills", "list", env={…})``."""

    def run(
        *args: object, env: dict[str, str] | None = None, timeout: float = 300, module: str = "kvnotes_local"
    ) -> Run:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        own = {
            "HOME": str(home),
            "USERPROFILE": str(home),
            "KVNOTES_CACHE_DIR": str(tmp_path / "cache"),
            "KVNOTES_DATA_DIR": str(tmp_path / "data"),
            "KVNOTES_LOG_DIR": str(tmp_path / "log"),
            "KVNOTES_CONFIG_DIR": str(tmp_path / "config"),
        }
        keep = {key: value for key, value in os.environ.items() if not key.startswith(("KVNOTES", "HF_", "LLAMA_"))}
        done = subprocess.run(
            [sys.executable, "-m", module, *map(str, args)],
            env={**keep, **own, **(env or {})},
            cwd=home,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Run(done.returncode, done.stdout, done.stderr)

    return run
