"""Trouble before anything runs: Ctrl-C while the program is still being loaded, and a llama.cpp that cannot be."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.zoo import zoo_model

Kvnotes = Callable[..., Run]


def in_front(folder: Path) -> dict[str, str]:
    """An environment in which modules of ``folder`` are found first."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


INTERRUPT_AT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to one process, which Windows cannot")
@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("kvnotes_local.cli.main", []),
        ("typer", []),
        ("numpy", []),
        ("kvnotes_local.engine.llama.build_check", []),
        ("llama_cpp.llama_cpp", []),
        ("kvnotes_local.notebook.notebook", []),
        ("kvnotes_local.skills.library", ["--isolate"]),
        ("kvnotes_local.notebook.notebook", ["--isolate"]),
    ],
)
def test_ctrl_c_while_the_program_is_being_loaded(
    kvnotes: Kvnotes, tmp_path: Path, zoo_directory: Path, module: str, options: list[str]
) -> None:
    """SIGINT comes at the moment that ``module`` is imported."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(INTERRUPT_AT.format(name=module))
    run = kvnotes(
        "ask",
        "Hi",
        "--model",
        zoo_model("llama", zoo_directory),
        "--max-tokens",
        2,
        *options,
        env=in_front(folder),
        module="kvnotes_local",
    )
    assert (run.code, run.err.strip().splitlines()[-1:]) == (1, ["Stopped."]), run.err
    assert "Traceback" not in run.err


BROKEN = {
    "missing": "raise ImportError('No module named llama_cpp')",
    "of another machine": "raise RuntimeError('Failed to load shared library libllama.so: invalid ELF header')",
    "deadly": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("how", BROKEN)
def test_doctor_works_without_llama_cpp_and_knows_the_cure(
    kvnotes: Kvnotes, tmp_path: Path, zoo_directory: Path, how: str
) -> None:
    package = tmp_path / "site" / "llama_cpp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(BROKEN[how])
    env = in_front(package.parent)
    run = kvnotes("doctor", "--json", env=env)
    assert run.code == 1, run.err
    check = next(one for one in json.loads(run.out)["checks"] if one["name"] == "llama.cpp")
    assert not check["good"]
    assert "pip install" in check["advice"]
    assert "Traceback" not in run.err
    ask = ("ask", "Hi", "--model", zoo_model("llama", zoo_directory))
    if how == "deadly":
        isolated = kvnotes(*ask, "--isolate", env=env)
        assert isolated.code == 1
        assert "did not start" in isolated.err
        assert "doctor" in isolated.err
        assert "Traceback" not in isolated.err
    else:
        asked = kvnotes(*ask, env=env)
        assert asked.code == 1
        assert "doctor" in asked.err
        assert "Traceback" not in asked.err
    if how == "missing":
        assert kvnotes("skills", "list", env=env).code == 0
        assert kvnotes("chats", "list", env=env).code == 0
        assert kvnotes("models", "list", env=env).code == 0
