"""The check of llama.cpp's fast weight buffers: when a child is run, what its end means, and what is remembered."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvnotes_local.engine.llama import build_check
from kvnotes_local.engine.llama.build_check import ChildResult, extra_buffers_safe, read_cpu_flags, run_child
from kvnotes_local.errors import EngineError
from kvnotes_local.models.scan import embedded_model

AMX = frozenset({"avx512f", "amx_tile", "amx_int8"})
MODEL = Path("model.gguf")


class Child:
    """Stands for the child process and counts its runs."""

    def __init__(self, returncode: int | None, output: str = "") -> None:
        self.result = ChildResult(returncode, output)
        self.commands: list[list[str]] = []

    def __call__(self, command: Sequence[str]) -> ChildResult:
        self.commands.append(list(command))
        return self.result


def test_without_amx_nothing_is_run(tmp_path: Path) -> None:
    child = Child(-signal.SIGSEGV)
    assert extra_buffers_safe(MODEL, tmp_path, runner=child, cpu_flags=frozenset({"avx2"}), env={}).safe
    assert child.commands == []
    assert list(tmp_path.iterdir()) == []


def test_the_environment_can_ask_for_the_check(tmp_path: Path) -> None:
    child, env = Child(-signal.SIGSEGV), {"KVNOTES_CHECK_BUILD": "1"}
    assert not extra_buffers_safe(MODEL, tmp_path, runner=child, cpu_flags=frozenset(), env=env).safe
    assert child.commands == [[sys.executable, "-m", "kvnotes_local.engine.llama.build_check", "model.gguf"]]


@pytest.mark.parametrize(
    ("code", "safe", "reason"),
    [
        (0, True, "went well"),
        (-signal.SIGSEGV, False, "SIGSEGV"),
        (-signal.SIGILL, False, "SIGILL"),
        (0xC0000005, False, "0xc0000005"),
        (3, False, "no numbers"),
    ],
)
def test_a_verdict_is_remembered(tmp_path: Path, code: int, safe: bool, reason: str) -> None:
    child = Child(code)
    first = extra_buffers_safe(MODEL, tmp_path, runner=child, cpu_flags=AMX, env={})
    assert first.safe is safe
    assert reason in first.reason
    assert bool(first.cure) is not safe
    assert extra_buffers_safe(MODEL, tmp_path, runner=child, cpu_flags=AMX, env={}) == first
    assert len(child.commands) == 1


@pytest.mark.parametrize("code", [None, 1, -signal.SIGKILL, -signal.SIGABRT, -signal.SIGTERM])
def test_a_trial_that_could_not_be_made_means_no_and_is_made_again(tmp_path: Path, code: int | None) -> None:
    child = Child(code, "first line\nModelError: no such model\n")
    verdict = extra_buffers_safe(MODEL, tmp_path, runner=child, cpu_flags=AMX, env={})
    assert (verdict.safe, verdict.cure) == (False, "")
    assert ("no such model" in verdict.reason) is (code is not None)
    extra_buffers_safe(MODEL, tmp_path, runner=child, cpu_flags=AMX, env={})
    assert len(child.commands) == 2


def test_the_cure_is_a_command_that_rebuilds_this_release_with_the_flag(tmp_path: Path) -> None:
    cure = extra_buffers_safe(MODEL, tmp_path, runner=Child(-signal.SIGSEGV), cpu_flags=AMX, env={}).cure
    variable, python, *arguments = shlex.split(cure)
    assert variable == "CMAKE_ARGS=-DCMAKE_C_FLAGS=-fno-dse -DCMAKE_CXX_FLAGS=-fno-dse"
    assert python == sys.executable
    assert {"--force-reinstall", "--no-cache-dir", "--no-deps"} < set(arguments)
    assert arguments[-1].startswith("llama-cpp-python==")


def test_another_build_or_cpu_is_checked_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "llama_stub"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").touch()
    library = package / "lib" / "libggml-cpu.so"
    library.write_bytes(b"old")
    monkeypatch.syspath_prepend(package.parent)
    find_spec = build_check.find_spec
    monkeypatch.setattr(build_check, "find_spec", lambda name: find_spec("llama_stub"))
    child = Child(0)

    def check(flags: frozenset[str] = AMX) -> int:
        extra_buffers_safe(MODEL, tmp_path / "cache", runner=child, cpu_flags=flags, env={})
        return len(child.commands)

    assert (check(), check()) == (1, 1)
    assert check(AMX | {"amx_bf16"}) == 2
    library.write_bytes(b"a new one")
    assert (check(), check()) == (3, 3)
    os.utime(library, ns=(1, 1))
    assert (check(), check()) == (4, 4)
    monkeypatch.setattr(build_check, "_llama_cpp_version", lambda: "99")
    assert (check(), check()) == (5, 5)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": 1}', b'{"format": 1, "safe": "yes"}'])
def test_a_damaged_verdict_is_replaced(tmp_path: Path, content: bytes) -> None:
    child = Child(0)
    extra_buffers_safe(MODEL, tmp_path, runner=child, cpu_flags=AMX, env={})
    (verdict_file,) = tmp_path.iterdir()
    verdict_file.write_bytes(content)
    assert extra_buffers_safe(MODEL, tmp_path, runner=child, cpu_flags=AMX, env={}).safe
    assert len(child.commands) == 2
    assert json.loads(verdict_file.read_bytes())["safe"] is True


def test_calls_at_the_same_time_agree(tmp_path: Path) -> None:
    def check(_: int) -> bool:
        return extra_buffers_safe(MODEL, tmp_path, runner=Child(-signal.SIGSEGV), cpu_flags=AMX, env={}).safe

    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(check, range(40)))
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]  # and no temporary file is left


def test_a_cache_that_cannot_be_written_does_not_change_the_verdict(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    assert extra_buffers_safe(MODEL, blocked, runner=Child(0), cpu_flags=AMX, env={}).safe
    assert "cannot be kept" in caplog.text


def test_missing_llama_cpp_is_an_engine_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise build_check.PackageNotFoundError(name)

    monkeypatch.setattr(build_check, "version", missing)
    with pytest.raises(EngineError, match="llama-cpp-python is not installed"):
        extra_buffers_safe(MODEL, tmp_path, runner=Child(0), cpu_flags=AMX, env={})


def test_cpu_flags_come_from_cpuinfo(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu amx_tile\nbugs\t:\nflags\t\t: other\n")
    assert read_cpu_flags(tmp_path / "cpuinfo") == {"fpu", "amx_tile"}
    assert read_cpu_flags(tmp_path / "none") == frozenset()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals")
def test_a_child_that_crashes_is_seen_as_such() -> None:
    crash = "import os, signal; print('last words', flush=True); os.kill(os.getpid(), signal.SIGSEGV)"
    assert run_child([sys.executable, "-c", crash]) == ChildResult(-signal.SIGSEGV, "last words\n")


def test_a_child_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_check, "CHILD_SECONDS", 0.2)
    assert run_child([sys.executable, "-c", "import time; time.sleep(60)"]).returncode is None


@pytest.mark.model
def test_the_real_child_decodes_with_this_build_and_says_no_to_a_file_that_is_no_model(tmp_path: Path) -> None:
    model = embedded_model()
    assert model is not None
    env = {"KVNOTES_CHECK_BUILD": "1"}
    verdict = extra_buffers_safe(model, tmp_path / "a", cpu_flags=frozenset(), env=env)
    assert (verdict.safe, verdict.reason) == (True, "a trial decode went well")
    (tmp_path / "none.gguf").write_bytes(b"nothing")
    refused = extra_buffers_safe(tmp_path / "none.gguf", tmp_path / "b", cpu_flags=frozenset(), env=env)
    assert not refused.safe
    assert "none.gguf" in refused.reason
