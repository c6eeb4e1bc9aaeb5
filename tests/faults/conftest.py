"""Each fault test runs once by default, and nine times more with ``-m slow``, then with other random choices."""

from __future__ import annotations

import pytest

ROUNDS = 10


@pytest.fixture(autouse=True)
def again(request: pytest.FixtureRequest) -> int:
    """Number of the round, 0 for the default one: a seed for what is chosen at random."""
    return int(getattr(request, "param", 0))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if any(mark.name == "slow" for mark in metafunc.definition.iter_markers()):
        return
    rounds = [0, *(pytest.param(number, marks=pytest.mark.slow) for number in range(1, ROUNDS))]
    metafunc.parametrize("again", rounds, indirect=True, ids=lambda number: f"round {number}" if number else "once")
