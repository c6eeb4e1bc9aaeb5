"""llama.cpp for this machine: the choice of a backend, compiler flags, the build, a check of its AMX code.

The record of a build is written right after it, so that an interrupted set-up does not build again.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from _processes import read_json, say, write_json
from _venv import VENV, SetupError, pip, run_module

BUILD_RECORD = VENV / "llama-build.json"
BACKENDS = ("auto", "cpu", "cuda", "metal", "vulkan")
NO_DSE = ("-DCMAKE_C_FLAGS=-fno-dse", "-DCMAKE_CXX_FLAGS=-fno-dse")

# Loads a tile configuration the way ggml-cpu/amx/mmq.cpp does, stores it and compares. GCC 12 declares that
# _tile_loadconfig reads 8 of the 64 bytes and drops the stores to the others. Ends with 0 when all is well, with 3 or
# by a signal when bytes got lost, with 2 when this machine cannot tell. Valid C and C++.
AMX_PROBE = r"""
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
struct tiles { unsigned char palette, start, reserved[14]; unsigned short bytes[16]; unsigned char rows[16]; };
static unsigned char stored[64];
__attribute__((noinline)) static void load(void) {
    struct tiles t __attribute__((aligned(64))) = {0};
    t.palette = 1;
    for (int i = 0; i < 8; i++) { t.rows[i] = 8; t.bytes[i] = 64; }
    _tile_loadconfig(&t);
}
int main(void) {
    if (syscall(SYS_arch_prctl, 0x1023 /* request permission for */, 18 /* tile data */)) return 2;
    load();
    __asm__ volatile("sttilecfg %0" : "=m"(stored) : : "memory");
    return stored[0] == 1 && stored[16] == 64 && stored[30] == 64 && stored[48] == 8 && stored[55] == 8 ? 0 : 3;
}
"""


class Facts(NamedTuple):
    """What a build depends on besides what the user asks for; a tool that is not there is None.

    ``cpu_flags``: what the CPU can do, in Linux' words. ``compiler``: the C++ compiler as the start of a command, empty
    for none.
    """

    system: str
    machine: str
    nvcc: str | None = None
    nvidia_device: bool = False
    glslc: str | None = None
    vulkan_device: bool = False
    cpu_flags: frozenset[str] = frozenset()
    compiler: tuple[str, ...] = ()


class Build(NamedTuple):
    """One way to build llama.cpp. ``plain``: pip's cached wheel may serve, which knows nothing of CMake arguments."""

    backend: str
    cmake_args: str
    user_cmake_args: str = ""
    plain: bool = True
    nvcc: str | None = None


def install_llama(requirement: str, asked: str | None, facts: Facts) -> Build:
    """Install llama.cpp. A GPU build that nobody asked for by name gives way to the CPU's where it fails."""
    record = read_json(BUILD_RECORD)
    user_args = os.environ.get("CMAKE_ARGS", record.get("user_cmake_args", ""))
    backend, why = asked, "as asked for"
    if asked is None and record.get("backend") in BACKENDS:
        backend, why = str(record["backend"]), "as built before"
    if backend in (None, "auto"):
        backend, why = choose_backend(facts)
    say(f"backend: {backend} ({why})")
    extra = amx_flags(facts, probe_amx)
    if extra:
        say("this compiler gets llama.cpp's AMX code wrong: building with -fno-dse")
    build = plan_build(str(backend), facts, user_args, extra)
    try:
        build_llama(requirement, build)
    except SetupError as error:
        if backend in ("cpu", "metal"):
            raise
        if asked == backend:
            raise SetupError(f"{error}\n`--backend cpu` builds without the GPU") from None
        say(f"{error}\nBuilding for the CPU instead; `--backend {backend}` tries the GPU again")
        build = plan_build("cpu", facts, user_args, extra)
        build_llama(requirement, build)
    return build


def choose_backend(facts: Facts) -> tuple[str, str]:
    """The backend for a machine, and why."""
    if facts.system == "Darwin" and facts.machine == "arm64":
        return "metal", "Apple silicon"
    if facts.nvcc and facts.nvidia_device:
        return "cuda", f"an NVIDIA device and {facts.nvcc}"
    if facts.glslc and facts.vulkan_device:
        return "vulkan", f"a GPU and {facts.glslc}"
    if facts.nvidia_device:
        return "cpu", "an NVIDIA device, but no nvcc: for the GPU install the CUDA toolkit, then use --backend cuda"
    if facts.vulkan_device:
        return "cpu", "a GPU, but no glslc: for the GPU install the Vulkan SDK, then use --backend vulkan"
    return "cpu", "no GPU found"


def gather_facts(env: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Facts:
    """The facts of this machine; of one made up for a test with ``env`` and ``root``, the top of its file system."""
    path = env.get("PATH", os.defpath)
    homes = [env.get("CUDA_HOME", ""), env.get("CUDA_PATH", ""), str(root / "usr/local/cuda")]
    nodes = list((root / "dev/dri").glob("renderD*"))
    nvidia = any((root / file).exists() for file in ("proc/driver/nvidia/version", "dev/nvidia0"))
    return Facts(
        system=platform.system(),
        machine=platform.machine(),
        nvcc=find_tool("nvcc", path, homes),
        nvidia_device=nvidia or tool_prints(find_tool("nvidia-smi", path), "-L", "GPU 0"),
        glslc=find_tool("glslc", path, [env.get("VULKAN_SDK", "")]),
        vulkan_device=any(os.access(node, os.R_OK | os.W_OK) for node in nodes)
        # llvmpipe is listed as PHYSICAL_DEVICE_TYPE_CPU
        or tool_prints(find_tool("vulkaninfo", path), "--summary", "_GPU"),
        cpu_flags=read_cpu_flags(root / "proc/cpuinfo"),
        compiler=find_compiler(path, env.get("CXX", "")),
    )


def find_tool(name: str, path: str, homes: Sequence[str] = ()) -> str | None:
    folders = [str(Path(home) / "bin") for home in homes if home]
    return shutil.which(name, path=path) or shutil.which(name, path=os.pathsep.join(folders))


def tool_prints(tool: str | None, argument: str, word: str) -> bool:
    if tool is None:
        return False
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # a tool that does not work lists no device
        run = subprocess.run(
            [tool, argument], capture_output=True, text=True, errors="replace", timeout=20, check=False
        )
        return run.returncode == 0 and word in run.stdout
    return False


def read_cpu_flags(cpuinfo: Path) -> frozenset[str]:
    """What the CPU can do, in Linux' words; empty elsewhere (ggml's AMX code is not known to fail there)."""
    with contextlib.suppress(OSError):
        flags = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        return frozenset(flags[1].split()) if flags else frozenset()
    return frozenset()


def find_compiler(path: str, cxx: str = "") -> tuple[str, ...]:
    """The C++ compiler that CMake will take (the AMX code is C++); ``cxx``: the user's choice, from $CXX."""
    if cxx:
        return tuple(shlex.split(cxx))
    return tuple(found for name in ("c++", "g++", "clang++") if (found := shutil.which(name, path=path)))[:1]


def plan_build(backend: str, facts: Facts, user_args: str, extra: Sequence[str] = ()) -> Build:
    """How to build for a backend. ``extra``: flags that this machine's compiler needs; it stays plain with them."""
    default = "metal" if facts.system == "Darwin" else "cpu"  # what llama.cpp builds when not told anything
    flags = {"cuda": ["-DGGML_CUDA=on"], "metal": ["-DGGML_METAL=on"], "vulkan": ["-DGGML_VULKAN=on"]}.get(backend, [])
    if backend == "cpu" and facts.system == "Darwin":
        flags = ["-DGGML_METAL=off"]
    nvcc = facts.nvcc if backend == "cuda" else None
    return Build(
        backend, merge_cmake_args([*flags, *extra], user_args), user_args, backend == default and not user_args, nvcc
    )


def merge_cmake_args(ours: Sequence[str], user_args: str) -> str:
    """Our CMake arguments, then the user's, so that theirs win; compiler flags that both give are joined into one."""
    rest, theirs = list(ours), shlex.split(user_args)
    for flags in [argument for argument in ours if argument in NO_DSE]:
        name, _, value = flags.partition("=")
        for index, argument in enumerate(theirs):
            if argument.startswith((f"{name}=", f"{name}:")):
                theirs[index] = f"{argument} {value}"
                rest = [other for other in rest if other != flags]
    return shlex.join([*rest, *theirs])


def build_llama(requirement: str, build: Build, *, again: bool = False) -> None:
    # What makes a build another one. The flags that a compiler needs do not: check_amx sees to those.
    record = {"requirement": requirement, "backend": build.backend, "user_cmake_args": build.user_cmake_args}
    if not again and record.items() <= read_json(BUILD_RECORD).items():
        return
    BUILD_RECORD.unlink(missing_ok=True)  # an interrupted build must not be taken for a finished one
    environment = {"CMAKE_ARGS": build.cmake_args}
    if build.nvcc:  # CMake looks for it on the PATH only
        environment["CUDACXX"] = os.environ.get("CUDACXX", build.nvcc)
    fresh = ["--no-cache-dir", "--no-binary", "llama-cpp-python"] if again or not build.plain else []
    label = "building llama.cpp (about 5 minutes)" if fresh else "installing llama.cpp (5 minutes unless pip has it)"
    pip(label, ["install", "--no-deps", "--force-reinstall", *fresh, requirement], environment)
    write_json(BUILD_RECORD, {**record, "cmake_args": build.cmake_args})


def has_amx(facts: Facts) -> bool:
    return bool(facts.cpu_flags & {"amx_tile", "amx_int8"})


def amx_flags(facts: Facts, probe: Callable[[Sequence[str]], bool | None]) -> tuple[str, ...]:
    """CMake arguments that a build needs for AMX, where the CPU has it and the compiler is a GCC not proven good."""
    if not has_amx(facts) or not facts.compiler:
        return ()
    with contextlib.suppress(OSError):  # the build will say that it does not start
        version = subprocess.run(
            [*facts.compiler, "--version"], capture_output=True, text=True, errors="replace", check=False
        )
        if "Free Software Foundation" in version.stdout:
            return () if probe(facts.compiler) else NO_DSE
    return ()


def probe_amx(compiler: Sequence[str]) -> bool | None:
    """Whether this compiler loads tile configurations whole; None where that cannot be told."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "probe.cpp"), Path(folder, "probe")
        source.write_text(AMX_PROBE, encoding="utf-8")
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            command = [*compiler, "-O3", "-march=native", str(source), "-o", str(program)]
            if subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0:
                code = subprocess.run([program], capture_output=True, timeout=20, check=False).returncode
                return None if code == 2 else code == 0
    return None


def check_amx(requirement: str, build: Build, facts: Facts) -> None:
    """Run llama.cpp's AMX code once, in a child; a wheel that crashes (pip had kept it) is built anew with the cure."""
    if not has_amx(facts) or read_json(BUILD_RECORD).get("amx_checked"):
        return
    module = ["kvnotes_local.engine.llama.build_check"]
    if run_module("checking llama.cpp's AMX code", module) < 0:
        say("the llama.cpp that pip had kept crashes in its AMX code: building it again with -fno-dse")
        missing = [flag for flag in NO_DSE if flag not in shlex.split(build.cmake_args)]
        build = build._replace(cmake_args=merge_cmake_args(missing, build.cmake_args))
        build_llama(requirement, build, again=True)
        if run_module("checking llama.cpp's AMX code again", module) < 0:
            say("it still crashes: kvnotes will leave the AMX code unused on this machine, which is slower but safe")
    write_json(BUILD_RECORD, {**read_json(BUILD_RECORD), "amx_checked": True})
