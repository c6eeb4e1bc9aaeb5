"""The probe finds the notes where they must be: in the field itself where a model cannot write any, else behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.errors import KvnotesError, UsageError
from kvnotes_local.evaluation import probe as probe_module
from kvnotes_local.evaluation.probe import ProbeCase, chat_probe_case, probe, summarize
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.notebook.segment_factory import SegmentFactory
from tests.conftest import MakeEngine
from tests.evaluation.samples import deep_model, single_layer_model

TEXT = "The roof is {{roof|open}} now. Guests go up when they like, and they stay as long as they want."


@pytest.fixture
def engine(zoo_directory: Path, measurements: Path) -> Iterator[Callable[[Callable[[Path], Path]], LlamaEngine]]:
    engines = []

    def make(model: Callable[[Path], Path]) -> LlamaEngine:
        params = EngineParams(n_ctx=1024, type_k=GGMLType.F32, type_v=GGMLType.F32, n_threads=1)
        engines.append(LlamaEngine(model(zoo_directory), params, cache_dir=measurements))
        return engines[-1]

    yield make
    for one in engines:
        one.close()


def case(engine: LlamaEngine, values: tuple[str, str] = ("open", "shut"), text: str = TEXT) -> ProbeCase:
    segments = SegmentFactory(engine).beginning(text, {"roof": values[0]})
    return ProbeCase("roof", segments, "roof", values, "Is it open?", ("Yes", "No"))


@pytest.fixture(autouse=True)
def random_models_decide_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "MIN_FLIP", 1e-4)


def test_a_model_of_one_layer_has_no_notes(engine: Callable[..., LlamaEngine]) -> None:
    one = engine(single_layer_model)
    found = probe(one, case(one))
    assert found.own == pytest.approx(1.0, abs=0.1)
    assert found.later == pytest.approx(0.0, abs=0.1)
    assert found.random == pytest.approx(0.0, abs=0.1)
    assert one.new_sequence() == 0  # all sequences were given back


def test_rows_behind_the_field_carry_something_in_a_deeper_model(engine: Callable[..., LlamaEngine]) -> None:
    deep = engine(deep_model)
    found = probe(deep, case(deep))
    assert abs(found.later) > 0.05
    assert [one.recovery for one in found.positions] == sorted((one.recovery for one in found.positions), reverse=True)
    n_behind = found.n_tokens - found.field[1]
    assert {one.start for one in found.positions} == set(range(found.field[1], found.n_tokens))
    assert len(found.positions) == n_behind
    assert "".join(found.pieces[slice(*found.field)]) == "open"


def test_values_of_different_lengths_are_followed_by_rows_that_are_turned(engine: Callable[..., LlamaEngine]) -> None:
    one = engine(single_layer_model)
    longer = probe(one, case(one, ("open", "shut for good")))
    # Rows of one layer are the same wherever they are computed, so those behind the field carry where they stand, not notes.
    assert longer.own == pytest.approx(1.0, abs=0.05)
    shorter = probe(one, case(one, ("shut for good", "open")))
    assert shorter.own == pytest.approx(1.0, abs=0.05)


def test_long_contexts_are_searched_window_by_window(engine: Callable[..., LlamaEngine]) -> None:
    deep = engine(deep_model)
    asked: list[str] = []
    found = probe(deep, case(deep, text=TEXT + " The house is old." * 8), max_trials=40, step=asked.append)
    assert found.windows[0].start == found.field[1]
    assert found.windows[-1].stop == found.n_tokens
    assert all(a.stop == b.start for a, b in zip(found.windows, found.windows[1:], strict=False))
    assert 0 < len(found.positions) <= 40
    assert sum("swapping token" in what for what in asked) <= 40


def test_decisions_that_hardly_change_are_not_traced(
    engine: Callable[..., LlamaEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine(single_layer_model)
    monkeypatch.setattr(probe_module, "MIN_FLIP", 50.0)
    with pytest.raises(KvnotesError, match="nothing to trace"):
        probe(one, case(one))


def test_fields_that_are_not_there_are_named(engine: Callable[..., LlamaEngine]) -> None:
    one = engine(single_layer_model)
    with pytest.raises(UsageError, match="roof"):
        chat_probe_case("c1", case(one).segments, "window", "x", "?", ("Yes", "No"))


def test_models_that_do_not_splice_are_refused(tiny_engine: MakeEngine) -> None:
    mamba = tiny_engine("mamba")
    with pytest.raises(KvnotesError, match="cannot be swapped"):
        probe(mamba, case(mamba))


def test_a_summary_has_intervals_over_cases(engine: Callable[..., LlamaEngine]) -> None:
    deep = engine(deep_model)
    found = [probe(deep, case(deep, values), max_trials=32) for values in (("open", "shut"), ("open", "gone"))]
    summary = summarize(found)
    assert summary.later.n == 2
    assert summary.later.low <= summary.later.mean <= summary.later.high
