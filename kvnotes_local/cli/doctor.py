"""``kvnotes doctor``: machine, build, models, and what to do about what is wrong."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass

import typer

from kvnotes_local.cli.options import CacheDirOption, with_options
from kvnotes_local.cli.output import Output
from kvnotes_local.errors import KvnotesError, ModelError
from kvnotes_local.paths import ensure_private
from kvnotes_local.session.places import Places
from kvnotes_local.session.quantities import human_bytes


@dataclass(frozen=True)
class Check:
    """One line of the report; ``advice`` is empty where nothing is to be done."""

    name: str
    good: bool
    finding: str
    advice: str = ""


def register(app: typer.Typer) -> None:
    app.command("doctor")(with_options(doctor))


def doctor(
    cache_dir: CacheDirOption = None,
    *,
    output: Output,
) -> None:
    """Say what this machine and this build can do, and what to do about what they cannot."""
    places = Places.usual(cache=cache_dir)
    checks = [_machine(), *_build(places), _models(), _skills(), _places(places)]
    width = max(len(check.name) for check in checks)
    for check in checks:
        output.text(f"{'ok ' if check.good else '!! '} {check.name.ljust(width)}  {check.finding}")
        if check.advice:
            output.text(f"    {' ' * width}  → {check.advice}")
    output.document({"checks": checks, "good": all(check.good for check in checks)})
    if not all(check.good for check in checks):
        raise typer.Exit(1)


def _machine() -> Check:
    import psutil

    from kvnotes_local.models.memory import available_memory

    memory = psutil.virtual_memory().total
    return Check(
        "machine",
        True,
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {psutil.cpu_count()} cores, "
        f"{human_bytes(memory)} memory, {human_bytes(available_memory())} free",
    )


def _build(places: Places) -> list[Check]:
    from importlib.metadata import PackageNotFoundError, version

    from kvnotes_local.engine.llama.build_check import extra_buffers_safe
    from kvnotes_local.engine.process.build_facts import BuildBroken, ask_build
    from kvnotes_local.models.scan import embedded_model, find_models

    try:
        release = version("llama-cpp-python")
    except PackageNotFoundError:
        return [Check("llama.cpp", False, "llama-cpp-python is not installed", _reinstall())]
    try:
        facts = ask_build()
    except BuildBroken as error:
        return [Check("llama.cpp", False, f"cannot be loaded: {error.cause}", _reinstall())]
    checks = [Check("llama.cpp", True, f"llama-cpp-python {release}; {facts.system}")]
    model = embedded_model() or next((found.path for found in find_models() if found.header), None)
    if model is not None:
        verdict = extra_buffers_safe(model, ensure_private(places.cache))
        checks.append(Check("fast buffers", verdict.safe, verdict.reason, verdict.cure))
    return checks


def _reinstall() -> str:
    from kvnotes_local.engine.llama.build_check import rebuild_command
    from kvnotes_local.errors import EngineError

    try:
        return rebuild_command()
    except EngineError:
        return f"{sys.executable} -m pip install --force-reinstall kvnotes-local"


def _models() -> Check:
    from kvnotes_local.cli.models import NO_MODEL
    from kvnotes_local.models.default import DefaultModel
    from kvnotes_local.models.scan import scan_models

    models = [found for found in scan_models().models if found.header]
    if not models:
        return Check("models", False, "none found", NO_MODEL)
    try:
        taken = DefaultModel.default().find(models) or models[0]
    except ModelError as error:
        return Check("models", False, f"{len(models)} found", str(error))
    return Check("models", True, f"{len(models)} found; without --model {taken.name} is taken ({taken.source.value})")


def _skills() -> Check:
    from kvnotes_local.skills.library import SkillLibrary

    library = SkillLibrary.default()
    advice = library.problems[0].message if library.problems else ""
    return Check(
        "skills", not library.problems, f"{len(library.skills)} found, {len(library.problems)} unreadable", advice
    )


def _places(places: Places) -> Check:
    try:
        for folder in (places.cache, places.data, places.log):
            ensure_private(folder)
    except KvnotesError as error:
        return Check("places", False, str(error))
    return Check("places", True, f"cache {places.cache}, data {places.data}, logs {places.log}")
