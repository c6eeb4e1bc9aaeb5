"""The mutants that scripts/mutation_run.py makes are Python, differ from the code, and leave texts and annotations alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))

from _mutations import find_mutants

MODULES = [REPOSITORY / "kvnotes_local" / name for name in ("kv/hadamard.py", "artifacts/writer.py")]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_mutant_is_other_code(path: Path) -> None:
    source = path.read_text("utf-8")
    tree = ast.dump(ast.parse(source))
    for mutant in find_mutants(source):
        assert ast.dump(ast.parse(mutant.apply(source))) != tree, mutant


@pytest.mark.parametrize(
    ("code", "mutants"),
    [
        ("x = a < b", {"x = (a <= b)"}),
        ("x = a is None", {"x = (a is not None)"}),
        ("x = a and b", {"x = (a or b)"}),
        ("x = not a", {"x = (a)"}),
        ("x = any(a)", {"x = (all(a))"}),
        ("x = a.max(0)", {"x = (a.min(0))", "x = a.max(1)"}),
        ("x = a + b", {"x = (a - b)"}),
        ("x = 5", {"x = 6", "x = 4"}),
        ("x = True", {"x = False"}),
        ("f(x)", {"pass"}),
        ("raise E", {"pass"}),
        ("def f() -> int:\n    return é", {"def f() -> int:\n    return None"}),
        ("if a: b = c", {"if (not a): b = c"}),
        ('"""A text."""', set()),
        ('x = f"{a + 1}"', set()),
        ("x: Literal[1] = y", set()),
    ],
)
def test_each_operator_changes_its_kind_of_code(code: str, mutants: set[str]) -> None:
    assert {mutant.apply(code) for mutant in find_mutants(code)} == mutants
