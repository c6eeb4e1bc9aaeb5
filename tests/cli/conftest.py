"""The command line inside the test's own process, for the many tests that need no process of their own: ten times faster."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvnotes_local.__main__ import open_screens
from kvnotes_local.cli.main import app
from kvnotes_local.cli.main import run as main
from tests.conftest import Run


@pytest.fixture
def kvnotes_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Run]:
    """As ``kvnotes``, with the same home and caches, without starting a process."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    monkeypatch.chdir(home)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(home))
    for name in ("CACHE", "DATA", "LOG", "CONFIG"):
        monkeypatch.setenv(f"KVNOTES_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.delenv("KVNOTES_MODELS", raising=False)

    def run(*args: object, env: dict[str, str] | None = None) -> Run:
        capsys.readouterr()
        app.registered_commands.clear()  # a process starts without any
        app.registered_groups.clear()
        with monkeypatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["kvnotes", *map(str, args)])
            code: object = 0
            try:
                main(open_screens)
            except SystemExit as end:
                code = end.code or 0
        assert isinstance(code, int), code
        return Run(code, *capsys.readouterr())

    return run
