"""How long a piece of work may take, from what such pieces took before."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kvnotes_local.engine.llama.pulse import FACTOR, FIRST_SECONDS, LEAST_SECONDS, READ_BYTES_PER_SECOND, Pulse


@dataclass
class Work:
    """Pieces of work on a clock that stands still otherwise."""

    now: float = 0.0
    pulse: Pulse = field(init=False)

    def __post_init__(self) -> None:
        self.pulse = Pulse(clock=lambda: self.now)

    def did(self, size: int, seconds: float, kind: str = "decode") -> None:
        with self.pulse.piece(kind, size):
            self.now += seconds

    def allowed(self, size: int, kind: str = "decode") -> float:
        with self.pulse.piece(kind, size):
            return self.pulse.read().allowed


def test_work_that_was_never_measured_has_long() -> None:
    assert Work().allowed(1) == FIRST_SECONDS


def test_quick_work_has_the_least_and_slow_work_a_multiple_of_what_it_took() -> None:
    work = Work()
    work.did(1, 0.02)
    assert work.allowed(1) == LEAST_SECONDS
    work.did(512, 40.0)
    assert work.allowed(512) == pytest.approx(FACTOR * 40.0)
    assert work.allowed(1) == LEAST_SECONDS, "what a batch takes says nothing about a token"
    assert work.allowed(300) <= FACTOR * 40.0


def test_small_batches_do_not_make_the_limit_of_large_ones_lax() -> None:
    """A batch of 2 tokens takes as long as one of 1; 512 tokens take far less than 256 times that."""
    work = Work()
    work.did(1, 0.3)
    work.did(2, 0.3)
    work.did(512, 9.0)
    assert work.allowed(512) == pytest.approx(FACTOR * 9.0)


def test_what_was_measured_on_smaller_work_only_is_scaled() -> None:
    work = Work()
    work.did(1, 0.3)
    assert work.allowed(512) == pytest.approx(FACTOR * 0.3 * 512)


def test_an_outlier_fades() -> None:
    work = Work()
    work.did(1, 100.0)
    for _ in range(60):
        work.did(1, 0.1)
    assert work.allowed(1) == LEAST_SECONDS


def test_a_large_model_may_have_to_be_read_from_disk_again() -> None:
    work = Work()
    work.pulse.model_bytes = 8 * 10**9
    work.did(1, 0.1)
    assert work.allowed(1) == 8e9 / READ_BYTES_PER_SECOND


def test_the_present_piece_is_timed_and_progress_begins_its_time_anew() -> None:
    work = Work()
    with work.pulse.piece("load"):
        work.now += 50.0
        assert work.pulse.read().seconds == 50.0
        work.pulse.advance()
        work.now += 5.0
        assert work.pulse.read().seconds == 5.0
    assert work.pulse.read().seconds == 0.0
