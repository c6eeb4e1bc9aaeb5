"""The set-up scripts, on a stub checkout whose packages are built by a few lines of Python and need no network."""

from __future__ import annotations

import importlib
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvnotes_local.errors import KvnotesError
from kvnotes_local.paths import Paths, ensure_private

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
posix_only = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals and executable scripts")


def load(name: str) -> Any:
    """A module that run.py and test.py share. scripts/ is on the path meanwhile only, as its test.py hides Python's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        return importlib.import_module(name)


_setup, _llama_build, _processes, _venv = map(load, ("_setup", "_llama_build", "_processes", "_venv"))


# A build backend that packs one module; the module of the stub llama.cpp tells what it was built with.
BACKEND = """
import os, pathlib, time, zipfile
NAME = "@NAME@"
MODULE = NAME.replace("-", "_")
INFO = MODULE + "-1.0.dist-info"
METADATA = f"Metadata-Version: 2.1\\nName: {NAME}\\nVersion: 1.0\\n"
def prepare_metadata_for_build_wheel(directory, config_settings=None):
    folder = pathlib.Path(directory, INFO)
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA)
    return INFO
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    args = os.environ.get("CMAKE_ARGS", "")
    print("STUB BUILD", NAME, args, flush=True)
    with open(os.environ["STUB_LOG"], "a") as log:
        log.write(f"{NAME} {args}\\n")
    if NAME in os.environ.get("STUB_SLEEP", ""):
        time.sleep(60)
    if os.environ.get("STUB_FAIL", "nothing") in NAME + args:
        raise SystemExit("CMake Error: CMAKE_CXX_COMPILER not set, after EnableLanguage")
    wheel = MODULE + "-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory, wheel), "w") as file:
        if NAME == "kvnotes-local":
            file.writestr("stub.pth", str(pathlib.Path.cwd()))
            file.writestr(INFO + "/entry_points.txt", "[console_scripts]\\nkvnotes = stub_app:run\\n")
        else:
            file.writestr(MODULE + ".py", f"BUILT_WITH = {args!r}")
        file.writestr(INFO + "/METADATA", METADATA)
        file.writestr(INFO + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        file.writestr(INFO + "/RECORD", "")
    return wheel
prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel
build_editable = build_wheel
"""
APP = """
import json, sys
def run():
    import llama_cpp_python
    print(json.dumps({"args": sys.argv[1:], "built_with": llama_cpp_python.BUILT_WITH, "prefix": sys.prefix}))
    sys.exit(7)
"""
PYTEST = """
import json, os, sys, stub_tool
print(json.dumps({"pytest": sys.argv[1:], "folder": os.getcwd()}))
sys.exit(5)
"""


def make_package(folder: Path, name: str, more: str = "") -> str:
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        f'[project]\nname = "{name}"\nversion = "1.0"\n{more}'
    )
    (folder / "backend.py").write_text(BACKEND.replace("@NAME@", name))
    return f"{name} @ {folder.as_uri()}"


PLAIN_MACHINE = _llama_build.Facts("Linux", "x86_64")
"""Has no compiler, no GPU and no AMX."""


class Checkout:
    """A checkout with this project's scripts and stub packages, on a machine that is made up."""

    def __init__(self, root: Path, packages: Path) -> None:
        self.root = root
        llama = make_package(packages / "llama", "llama-cpp-python")
        tool = make_package(packages / "tool", "stub-tool")
        demo = make_package(packages / "demo", "stub-demo")
        self.needs = f'dependencies = ["{llama}"]\noptional-dependencies = {{demo = ["{demo}"]}}\n'
        self.tools = f'[dependency-groups]\ndev = [{{include-group = "tools"}}]\ntools = ["{tool}"]\n'
        make_package(root, "kvnotes-local", self.needs + self.tools)
        shutil.copytree(SCRIPTS, root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        self.set_machine(PLAIN_MACHINE)
        (root / "builds.log").touch()
        (root / "stub_app.py").write_text(APP)
        (root / "pytest.py").write_text(PYTEST)

    def command(self, script: str, *arguments: str) -> list[str]:
        return [sys.executable, str(self.root / "scripts" / script), *arguments]

    def set_machine(self, facts: Any) -> None:
        """Let the scripts of this checkout find these facts, whatever machine the tests run on."""
        original = (SCRIPTS / "_llama_build.py").read_text()
        (self.root / "scripts" / "_llama_build.py").write_text(f"{original}\n\ngather_facts = lambda: {facts!r}\n")

    def environment(self, **more: str) -> dict[str, str]:
        """What the tests' own environment has (see conftest.py), and what pip needs to build the stubs."""
        return {
            **os.environ,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_BUILD_ISOLATION": "0",  # the stubs need nothing to be built; "0" switches isolation off
            "STUB_LOG": str(self.root / "builds.log"),
            **more,
        }

    def run(
        self, script: str, *arguments: str, cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        command = self.command(script, *arguments)
        environment = self.environment(**env)
        return subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    def start(self, script: str, **env: str) -> subprocess.Popen[str]:
        environment = self.environment(**env)
        return subprocess.Popen(
            self.command(script), env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def outdate(self, *, whole: bool = False) -> None:
        """Change pyproject.toml, so that the next run looks at everything again: the project alone, or all packages."""
        path = self.root / "pyproject.toml"
        text = path.read_text().replace(self.needs, "")
        path.write_text(text.replace(self.tools, (self.needs if whole else "") + self.tools) + "# changed\n")

    def builds(self) -> list[str]:
        """What was built since the last call: name and CMake arguments."""
        text = (self.root / "builds.log").read_text()
        (self.root / "builds.log").write_text("")
        return [line.strip() for line in text.splitlines()]

    @property
    def log(self) -> str:
        return (self.root / ".venv" / "setup.log").read_text()


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkout, subprocess.CompletedProcess[str]]:
    """A checkout in a folder with spaces, and how its first start went."""
    folder = tmp_path_factory.mktemp("set up")
    checkout = Checkout(folder / "check out", folder / "packages")
    return checkout, checkout.run("run.py", "ask", "--backend", "cpu", "two words", "--json", cwd=folder)


@pytest.fixture
def checkout(first_run: tuple[Checkout, subprocess.CompletedProcess[str]]) -> Checkout:
    return first_run[0]


# --- starting the program ---------------------------------------------------------------------------------------------


def test_first_start_sets_up_and_hands_arguments_and_exit_code_through(
    first_run: tuple[Checkout, subprocess.CompletedProcess[str]],
) -> None:
    checkout, run = first_run
    assert run.returncode == 7, run.stderr
    answer = json.loads(run.stdout)  # and nothing else is on stdout
    assert answer["args"] == ["ask", "two words", "--json"]
    assert Path(answer["prefix"]).resolve() == (checkout.root / ".venv").resolve()
    assert "backend: cpu" in run.stderr
    assert "installing llama.cpp" in run.stderr
    assert [line.split()[0] for line in checkout.builds()] == ["llama-cpp-python", "kvnotes-local", "stub-demo"]


def test_second_start_says_nothing_and_does_not_call_pip(checkout: Checkout, tmp_path: Path) -> None:
    before = checkout.log
    run = checkout.run("run.py", "x", cwd=tmp_path)
    assert (run.returncode, run.stderr) == (7, "")
    assert checkout.log == before


def test_a_moved_checkout_works_again(first_run: tuple[Checkout, Any], tmp_path: Path) -> None:
    first_run[0].outdate()
    root = tmp_path / "moved"
    shutil.copytree(first_run[0].root, root, symlinks=True)
    moved = Checkout.__new__(Checkout)
    moved.root = root
    run = moved.run("run.py")
    assert run.returncode == 7, run.stderr
    assert Path(json.loads(run.stdout)["prefix"]).resolve() == (root / ".venv").resolve()


def test_unknown_backend_is_a_usage_error(checkout: Checkout) -> None:
    run = checkout.run("run.py", "--backend", "abacus")
    assert run.returncode == 2
    assert "auto, cpu, cuda, metal, vulkan" in run.stderr


@pytest.mark.parametrize(("script", "options"), [("run.py", ["--backend"]), ("test.py", ["--backend", "--lint"])])
@pytest.mark.parametrize("asked", [["--help"], ["-h"], ["--backend", "cpu", "--help"]])
def test_help_tells_a_scripts_options_at_once_and_sets_nothing_up(
    tmp_path: Path, script: str, options: list[str], asked: list[str]
) -> None:
    checkout = Checkout(tmp_path / "checkout", tmp_path / "packages")
    run = checkout.run(script, *asked, PYTHONIOENCODING="ascii")
    assert (run.returncode, run.stderr) == (0, "")
    assert f"usage: python3 scripts/{script}" in run.stdout
    assert all(word in run.stdout for word in (*options, *_setup.BACKENDS))
    assert not (checkout.root / ".venv").exists()


def test_help_of_the_program_follows_once_it_is_set_up(checkout: Checkout) -> None:
    assert checkout.run("run.py").returncode == 7
    checkout.builds()
    for asked in (["--help"], ["--backend", "cuda", "--help"]):
        run = checkout.run("run.py", *asked)
        assert (run.returncode, run.stderr) == (7, "")
        ours, _, theirs = run.stdout.rpartition("\n\n")
        assert "--backend" in ours
        assert json.loads(theirs)["args"] == ["--help"]
    of_a_command = checkout.run("run.py", "ask", "--help")
    assert json.loads(of_a_command.stdout)["args"] == ["ask", "--help"]
    assert checkout.builds() == []


# --- backends ---------------------------------------------------------------------------------------------------------


def test_backend_is_built_with_its_flags_and_the_users_and_then_kept(checkout: Checkout) -> None:
    checkout.outdate(whole=True)
    first = checkout.run("run.py", "--backend", "vulkan", "x", CMAKE_ARGS="-DGGML_NATIVE=off")
    assert json.loads(first.stdout)["built_with"] == "-DGGML_VULKAN=on -DGGML_NATIVE=off"
    assert json.loads(first.stdout)["args"] == ["x"]
    assert "--no-cache-dir --no-binary llama-cpp-python" in checkout.log
    for same in ([], ["--backend", "vulkan"]):
        kept = checkout.run("run.py", *same)
        assert (json.loads(kept.stdout)["built_with"], kept.stderr) == (json.loads(first.stdout)["built_with"], "")


def make_tool(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho '{text}'\n")
    (folder / name).chmod(0o755)


@posix_only
def test_tools_and_devices_are_found_where_they_are_and_nowhere_else(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path / "bin"), "VULKAN_SDK": str(tmp_path / "sdk"), "CXX": ""}
    bare = _llama_build.gather_facts(env, tmp_path)
    assert bare[2:] == PLAIN_MACHINE[2:]
    make_tool(tmp_path / "bin", "nvidia-smi", "GPU 0: some card")
    make_tool(tmp_path / "usr/local/cuda/bin", "nvcc", "")
    make_tool(tmp_path / "sdk/bin", "glslc", "")
    make_tool(tmp_path / "bin", "vulkaninfo", "deviceType = PHYSICAL_DEVICE_TYPE_CPU")
    make_tool(tmp_path / "bin", "g++", "")
    found = _llama_build.gather_facts(env, tmp_path)
    assert found.nvcc == str(tmp_path / "usr/local/cuda/bin/nvcc")
    assert found.glslc == str(tmp_path / "sdk/bin/glslc")
    assert (found.nvidia_device, found.vulkan_device) == (True, False)
    assert found.compiler == (str(tmp_path / "bin/g++"),)
    make_tool(tmp_path / "bin", "vulkaninfo", "deviceType = PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU")
    assert _llama_build.gather_facts(env, tmp_path).vulkan_device
    make_tool(tmp_path / "bin", "nvcc", "")
    make_tool(tmp_path / "bin", "c++", "")
    found = _llama_build.gather_facts(env | {"CXX": "ccache clang++"}, tmp_path)
    assert (found.nvcc, found.compiler) == (str(tmp_path / "bin/nvcc"), ("ccache", "clang++"))
    assert _llama_build.gather_facts(env, tmp_path).compiler == (str(tmp_path / "bin/c++"),)


@pytest.mark.parametrize(
    ("file", "devices"),
    [
        ("proc/driver/nvidia/version", (True, False)),
        ("dev/nvidia0", (True, False)),
        ("dev/dri/renderD128", (False, True)),
        ("dev/dri/card0", (False, False)),
    ],
)
def test_devices_are_known_by_their_files(tmp_path: Path, file: str, devices: tuple[bool, bool]) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).touch()
    facts = _llama_build.gather_facts({"PATH": ""}, tmp_path)
    assert (facts.nvidia_device, facts.vulkan_device) == devices


@pytest.mark.parametrize(("asked", "built"), [(None, ["cuda", "cpu"]), ("auto", ["cuda", "cpu"]), ("cuda", ["cuda"])])
def test_gpu_that_was_only_detected_gives_way_to_the_cpu_when_its_build_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str | None, built: list[str]
) -> None:
    tried = []

    def build(_: str, plan: Any) -> None:
        tried.append(plan.backend)
        if plan.backend != "cpu":
            raise _venv.SetupError("no such build")

    monkeypatch.setattr(_llama_build, "BUILD_RECORD", tmp_path / "none")
    monkeypatch.setattr(_llama_build, "build_llama", build)
    facts = PLAIN_MACHINE._replace(nvcc="nvcc", nvidia_device=True)
    if asked == "cuda":
        with pytest.raises(_venv.SetupError, match=r"no such build\n.*--backend cpu"):
            _llama_build.install_llama("llama-cpp-python==1", asked, facts)
    else:
        assert _llama_build.install_llama("llama-cpp-python==1", asked, facts).backend == "cpu"
    assert tried == built


@pytest.mark.parametrize(
    ("facts", "backend", "why"),
    [
        ({"system": "Darwin", "machine": "arm64"}, "metal", "Apple silicon"),
        ({"system": "Darwin", "machine": "x86_64"}, "cpu", "no GPU"),
        ({"nvcc": "/cuda/nvcc", "nvidia_device": True, "glslc": "glslc", "vulkan_device": True}, "cuda", "/cuda/nvcc"),
        ({"nvcc": "/cuda/nvcc"}, "cpu", "no GPU"),
        ({"nvidia_device": True}, "cpu", "no nvcc"),
        ({"nvidia_device": True, "glslc": "/sdk/glslc", "vulkan_device": True}, "vulkan", "/sdk/glslc"),
        ({"glslc": "glslc"}, "cpu", "no GPU"),
        ({"vulkan_device": True}, "cpu", "no glslc"),
    ],
)
def test_choice_of_backend_and_its_reason(facts: dict[str, Any], backend: str, why: str) -> None:
    chosen, reason = _llama_build.choose_backend(
        _llama_build.Facts(**{"system": "Linux", "machine": "x86_64", **facts})
    )
    assert chosen == backend
    assert why in reason


@pytest.mark.parametrize(
    ("system", "backend", "user_args", "cmake_args", "plain"),
    [
        ("Linux", "cpu", "", "", True),
        ("Linux", "cpu", "-DX=1", "-DX=1", False),
        ("Linux", "cuda", "", "-DGGML_CUDA=on", False),
        ("Darwin", "metal", "", "-DGGML_METAL=on", True),
        ("Darwin", "cpu", "", "-DGGML_METAL=off", False),
    ],
)
def test_only_default_builds_may_come_out_of_pips_cache(
    system: str, backend: str, user_args: str, cmake_args: str, plain: bool
) -> None:
    build = _llama_build.plan_build(backend, _llama_build.Facts(system, "any"), user_args)
    assert (build.cmake_args, build.plain) == (cmake_args, plain)


def test_backend_option_is_taken_out_and_everything_else_stays() -> None:
    assert _setup.take_backend(["ask", "--backend", "cuda", "x"]) == ("cuda", ["ask", "x"])
    assert _setup.take_backend(["--backend=auto"]) == ("auto", [])
    assert _setup.take_backend(["ask", "--", "--backend", "cuda"]) == (None, ["ask", "--", "--backend", "cuda"])
    assert _setup.take_backend([]) == (None, [])
    with pytest.raises(SystemExit, match="2"):
        _setup.take_backend(["--backend"])


def test_windows_layout_of_the_environment() -> None:
    assert _venv.venv_python("nt").parts[-2:] == ("Scripts", "python.exe")
    assert _venv.venv_python("posix").parts[-2:] == ("bin", "python")
    assert _venv.script_command("E/Scripts/python.exe", "kvnotes", "nt") == [str(Path("E/Scripts/kvnotes.exe"))]


# --- interrupted and failing set-ups ----------------------------------------------------------------------------------


def wait_for_build(name: str, process: subprocess.Popen[str], checkout: Checkout) -> None:
    deadline = time.monotonic() + 60
    while name not in (checkout.root / "builds.log").read_text():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def processes_in(folder: Path) -> list[str]:
    """Command lines of processes that were started with something in a folder."""
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if str(folder) in line]


def interrupt_while_building(name: str, checkout: Checkout, number: signal.Signals, **env: str) -> tuple[int, str]:
    checkout.outdate(whole=True)
    checkout.builds()
    process = checkout.start("run.py", STUB_SLEEP=name, **env)
    wait_for_build(name, process, checkout)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert processes_in(checkout.root) == []
    checkout.builds()
    return process.returncode, said


@posix_only
def test_interrupted_set_up_leaves_no_process_and_goes_on_where_it_was(checkout: Checkout) -> None:
    code, said = interrupt_while_building("kvnotes-local", checkout, signal.SIGINT)
    assert code == 130
    assert "run the same command again" in said
    again = checkout.run("run.py")
    assert again.returncode == 7, again.stderr
    assert checkout.builds() == ["kvnotes-local", "stub-demo"]  # and not llama.cpp


@posix_only
def test_build_of_llama_cpp_that_was_interrupted_is_not_taken_for_a_finished_one(checkout: Checkout) -> None:
    before = json.loads((checkout.root / ".venv" / "llama-build.json").read_text())
    code, _ = interrupt_while_building("llama-cpp-python", checkout, signal.SIGTERM, CMAKE_ARGS="-DNEW=1")
    assert code == 128 + signal.SIGTERM
    again = checkout.run("run.py", "--backend", before["backend"], CMAKE_ARGS=before["user_cmake_args"])
    assert "-DNEW" not in json.loads(again.stdout)["built_with"]
    assert checkout.builds()[0].startswith("llama-cpp-python")


def test_failed_build_shows_the_end_of_the_log_and_what_to_do_and_can_be_repeated(checkout: Checkout) -> None:
    checkout.outdate()
    failed = checkout.run("run.py", STUB_FAIL="kvnotes-local")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert "CMAKE_CXX_COMPILER not set" in failed.stderr
    assert "sudo apt install build-essential" in failed.stderr
    assert "setup.log" in failed.stderr
    assert "Traceback" not in failed.stderr.split("What to do")[1]
    assert checkout.run("run.py").returncode == 7


@posix_only
def test_two_starts_at_once_set_up_once(checkout: Checkout) -> None:
    checkout.outdate()
    checkout.builds()
    both = [checkout.start("run.py") for _ in range(2)]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [7, 7], outputs
    assert checkout.builds().count("kvnotes-local") == 1


def test_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file" / ".venv"
    blocked.parent.write_text("a file where the checkout should be")
    monkeypatch.setattr(_venv, "VENV", blocked)
    with pytest.raises(_venv.SetupError, match=r"cannot write to .*\.venv.*\n.*copy the checkout"):
        _venv.make_venv()


def test_python_without_ensurepip_is_told_which_package_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_venv, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(_venv, "find_spec", lambda name: None if name == "ensurepip" else object())
    with pytest.raises(_venv.SetupError, match=r"sudo apt install python3\.\d+-venv"):
        _venv.make_venv()


# --- test.py ----------------------------------------------------------------------------------------------------------


def test_test_script_installs_the_tools_and_runs_pytest_with_its_arguments(checkout: Checkout, tmp_path: Path) -> None:
    run = checkout.run("test.py", "-k", "a and b", cwd=tmp_path)
    assert run.returncode == 5, run.stderr
    assert json.loads(run.stdout) == {"pytest": ["-k", "a and b"], "folder": str(checkout.root.resolve())}
    before = checkout.log
    assert checkout.run("test.py").stderr == ""
    assert checkout.run("run.py").stderr == ""
    assert checkout.log == before
    checkout.outdate()
    assert "installing" in checkout.run("run.py").stderr
    assert checkout.run("test.py").stderr == ""  # run.py kept the tools up to date


def test_all_checks_run_and_any_failure_counts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def ends_with(code: int) -> list[str]:
        return [sys.executable, "-c", f"import os; print('ran', {code}, os.getcwd()); raise SystemExit({code})"]

    assert _processes.run_all([ends_with(3), ends_with(0)], ends_with(0), tmp_path) == 3
    assert _processes.run_all([ends_with(0)], ends_with(4), tmp_path) == 4
    assert _processes.run_all([ends_with(0)], ends_with(0), tmp_path) == 0
    assert capfd.readouterr().out.split("\n")[:3] == [f"ran {code} {tmp_path.resolve()}" for code in (3, 0, 0)]


# --- AMX --------------------------------------------------------------------------------------------------------------

AMX_CPU = frozenset({"avx512f", "amx_tile", "amx_int8"})


def never(_: Sequence[str]) -> bool | None:
    raise AssertionError("there was no need to try the compiler")


@pytest.fixture
def compilers(tmp_path: Path) -> dict[str, list[str]]:
    make_tool(tmp_path, "gcc", "g++ (Debian 12.2.0)\nCopyright (C) 2022 Free Software Foundation, Inc.")
    make_tool(tmp_path, "clang", "clang version 17.0.6")
    return {
        "gcc": [str(tmp_path / "gcc")],
        "clang": [str(tmp_path / "clang")],
        "gone": [str(tmp_path / "gone")],
        "none": [],
    }


@posix_only
def test_flags_against_the_amx_crash_come_only_where_a_gcc_is_not_proven_good(compilers: dict[str, list[str]]) -> None:
    def flags(compiler: str, probe: Callable[[Sequence[str]], bool | None], cpu: frozenset[str] = AMX_CPU) -> Any:
        return _llama_build.amx_flags(PLAIN_MACHINE._replace(cpu_flags=cpu, compiler=tuple(compilers[compiler])), probe)

    assert flags("gcc", never, frozenset({"avx2"})) == ()
    assert flags("clang", never) == flags("gone", never) == flags("none", never) == ()
    assert flags("gcc", lambda _: True) == ()
    assert flags("gcc", lambda _: False) == flags("gcc", lambda _: None) == _llama_build.NO_DSE


@posix_only
def test_a_machine_with_amx_and_a_gcc_that_is_not_proven_good_builds_with_the_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilers: dict[str, list[str]]
) -> None:
    builds: list[str] = []
    monkeypatch.setattr(_llama_build, "BUILD_RECORD", tmp_path / "llama-build.json")
    monkeypatch.setattr(_llama_build, "pip", lambda label, arguments, env: builds.append(env["CMAKE_ARGS"]))
    monkeypatch.setenv("CMAKE_ARGS", "-DCMAKE_CXX_FLAGS=-g")
    machine = PLAIN_MACHINE._replace(cpu_flags=AMX_CPU)
    for compiler in ("gcc", "clang"):
        facts = machine._replace(compiler=tuple(compilers[compiler]))
        _llama_build.install_llama(f"llama-cpp-python of {compiler}", "vulkan", facts)
    assert [shlex.split(build) for build in builds] == [
        ["-DGGML_VULKAN=on", "-DCMAKE_C_FLAGS=-fno-dse", "-DCMAKE_CXX_FLAGS=-g -fno-dse"],
        ["-DGGML_VULKAN=on", "-DCMAKE_CXX_FLAGS=-g"],
    ]


def test_flags_of_the_user_and_against_the_crash_are_joined() -> None:
    merged = _llama_build.merge_cmake_args(
        ["-DGGML_CUDA=on", *_llama_build.NO_DSE], "-DCMAKE_CXX_FLAGS:STRING='-O2 -g' -DX=1"
    )
    assert shlex.split(merged) == [
        "-DGGML_CUDA=on",
        "-DCMAKE_C_FLAGS=-fno-dse",
        "-DCMAKE_CXX_FLAGS:STRING=-O2 -g -fno-dse",
        "-DX=1",
    ]


def test_cpu_flags_are_read_from_cpuinfo(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu amx_tile avx\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert _llama_build.read_cpu_flags(tmp_path / "cpuinfo") == {"fpu", "amx_tile", "avx"}
    assert _llama_build.read_cpu_flags(tmp_path / "none") == frozenset()


# The probe with ldtilecfg replaced by a copy whose operand declares too few bytes, or all of them.
EMULATED = """
static unsigned char stored[64];
static inline __attribute__((always_inline)) void _tile_loadconfig(const void *config) {
    __asm__ volatile("leaq %0, %%rsi; leaq %1, %%rdi; movl $64, %%ecx; rep movsb"
                     : : "m"(*(const @DECLARED@ *)config), "m"(stored) : "rsi", "rdi", "rcx");
}
"""


def working_gcc() -> str | None:
    """A GCC of this machine that makes programs for it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    empty = ["-E", "-dM", "-x", "c++", "-fno-dse", os.devnull]
    for folder in os.get_exec_path():
        compiler = shutil.which("g++", path=folder)
        macros = subprocess.run([compiler, *empty], capture_output=True, text=True, check=False) if compiler else None
        if macros and "__GNUC__" in macros.stdout and "__clang__" not in macros.stdout:
            return compiler
    return None


@pytest.mark.parametrize(
    ("declared", "flags", "code"), [("long long", [], 3), ("long long", ["-fno-dse"], 0), ("struct whole", [], 0)]
)
def test_probe_finds_lost_bytes_and_the_flag_is_the_cure(
    tmp_path: Path, declared: str, flags: list[str], code: int
) -> None:
    compiler = working_gcc()
    if compiler is None:
        pytest.skip("needs GCC on Linux and x86-64")
    source = _llama_build.AMX_PROBE
    for old, new in [
        ("#include <immintrin.h>", "struct whole { char bytes[64]; };\n" + EMULATED.replace("@DECLARED@", declared)),
        ("static unsigned char stored[64];\n__attribute__", "__attribute__"),
        ("syscall(SYS_arch_prctl, 0x1023 /* request permission for */, 18 /* tile data */)", "0"),
        ('"sttilecfg %0" : "=m"(stored)', '"" : "+m"(stored)'),
    ]:
        assert old in source
        source = source.replace(old, new)
    (tmp_path / "probe.cpp").write_text(source)
    subprocess.run([compiler, "-O3", *flags, "probe.cpp", "-o", "probe"], cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "probe"], check=False).returncode == code


@posix_only
@pytest.mark.parametrize(
    ("program", "verdict"),
    [("exit 0", True), ("exit 3", False), ("kill -SEGV $$", False), ("exit 2", None), ("", None)],
    ids=["all bytes", "lost bytes", "crash", "no AMX here", "does not compile"],
)
def test_probe_judges_a_compiler_by_what_its_program_does(tmp_path: Path, program: str, verdict: bool | None) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text(
        '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n'
        f"[ -n '{program}' ] && printf '#!/bin/sh\\n{program}\\n' > \"$2\" && chmod +x \"$2\"\n"
    )
    compiler.chmod(0o755)
    assert _llama_build.probe_amx([str(compiler)]) is verdict


def test_probe_cannot_tell_where_there_is_no_compiler(tmp_path: Path) -> None:
    assert _llama_build.probe_amx([str(tmp_path / "none")]) is None


@pytest.mark.parametrize(
    ("codes", "n_builds", "said"),
    [([0], 0, ""), ([-11, 0], 1, "building it again"), ([-11, -11], 1, "unused"), ([1], 0, "")],
)
def test_kept_wheel_that_crashes_is_built_again_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    codes: list[int],
    n_builds: int,
    said: str,
) -> None:
    record = tmp_path / "llama-build.json"
    record.write_text('{"backend": "cpu"}')
    builds: list[tuple[list[str], dict[str, str]]] = []
    ended = iter(codes)
    monkeypatch.setattr(_llama_build, "BUILD_RECORD", record)
    monkeypatch.setattr(_llama_build, "run_module", lambda *_: next(ended))
    monkeypatch.setattr(
        _llama_build, "pip", lambda label, arguments, environment: builds.append((arguments, environment))
    )
    facts = PLAIN_MACHINE._replace(cpu_flags=AMX_CPU)
    build = _llama_build.plan_build("cpu", facts, "")
    _llama_build.check_amx("llama-cpp-python==1", build, facts)
    assert len(builds) == n_builds
    assert said in capsys.readouterr().err
    if builds:
        assert "-fno-dse" in builds[0][1]["CMAKE_ARGS"]
        assert "--no-cache-dir" in builds[0][0]
    _llama_build.check_amx("llama-cpp-python==1", build, facts)  # the iterator is used up: it must not be asked again
    assert json.loads(record.read_text())["backend"] == "cpu"


# --- where files go ---------------------------------------------------------------------------------------------------


def test_each_directory_can_be_moved_by_its_variable(tmp_path: Path) -> None:
    usual = Paths.default({})
    assert len({usual.data, usual.cache, usual.log, usual.config}) >= 3
    assert all("kvnotes" in str(path) and path.is_absolute() for path in (usual.data, usual.cache, usual.config))
    moved = Paths.default({"KVNOTES_CACHE_DIR": str(tmp_path / "c"), "KVNOTES_DATA_DIR": "~/d", "KVNOTES_LOG_DIR": ""})
    assert moved == Paths(Path.home() / "d", tmp_path / "c", usual.log, usual.config)
    assert not (tmp_path / "c").exists()  # nothing is made before it is needed


@posix_only
def test_directories_are_made_for_the_user_only_and_left_alone_when_there(tmp_path: Path) -> None:
    made = ensure_private(tmp_path / "share" / "kvnotes" / "chats")
    assert [path.stat().st_mode & 0o777 for path in (made, made.parent, made.parent.parent)] == [0o700] * 3
    made.chmod(0o755)
    assert ensure_private(made).stat().st_mode & 0o777 == 0o755


def test_directory_that_cannot_be_made_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(KvnotesError, match=r"file.* cannot be made: .*KVNOTES_CACHE_DIR"):
            ensure_private(path)
