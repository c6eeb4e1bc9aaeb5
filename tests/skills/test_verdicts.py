"""Verdicts on disk: found under exactly their conditions, and never believed when damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvnotes_local.errors import KvnotesError
from kvnotes_local.skills.verdicts import Conditions, Outcome, Verdict, VerdictStore, conditions_of
from tests.conftest import MakeEngine

CONDITIONS = Conditions("a" * 64, "F16/F16", "llama-cpp-python 0.3.36, CPU")
VERDICT = Verdict(
    conditions=CONDITIONS,
    outcome=Outcome.PASSED,
    skill="refund-policy",
    model="SmolLM2",
    repair_tokens=8,
    cosine_mean=0.999,
    kl_mean=0.004,
    noise_kl_mean=0.003,
    top1_agreement=0.98,
    noise_top1_agreement=0.99,
    n_positions=384,
    created="2026-01-31T12:00:00+00:00",
)


@pytest.fixture
def store(tmp_path: Path) -> VerdictStore:
    return VerdictStore(tmp_path / "verdicts")


def test_a_verdict_is_found_again(store: VerdictStore) -> None:
    assert store.find(CONDITIONS) is None
    store.put(VERDICT)
    assert VerdictStore(store.directory).find(CONDITIONS) == VERDICT


@pytest.mark.parametrize(
    "change", [{"artifact_key": "b" * 64}, {"kv_type": "Q8_0/Q8_0"}, {"build": "llama-cpp-python 0.3.37, CPU"}]
)
def test_a_verdict_is_stale_when_any_condition_changes(store: VerdictStore, change: dict[str, str]) -> None:
    store.put(VERDICT)
    assert store.find(replace(CONDITIONS, **change)) is None


def test_a_newer_verdict_replaces_the_older_one(store: VerdictStore) -> None:
    store.put(VERDICT)
    store.put(replace(VERDICT, outcome=Outcome.FAILED))
    found = store.find(CONDITIONS)
    assert found is not None
    assert found.outcome is Outcome.FAILED
    assert len(list(store.directory.iterdir())) == 1
    store.forget(CONDITIONS)
    assert store.find(CONDITIONS) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 2),
        ("outcome", "splendid"),
        ("repair_tokens", -1),
        ("repair_tokens", 2.5),
        ("kl_mean", "small"),
        ("kl_mean", float("nan")),
        ("n_positions", True),
        ("conditions", {"artifact_key": "b" * 64, "kv_type": "F16/F16", "build": "llama-cpp-python 0.3.36"}),
        ("conditions", []),
        ("skill", None),
    ],
)
def test_a_changed_file_is_no_verdict(store: VerdictStore, key: str, value: object) -> None:
    store.put(VERDICT)
    (path,) = store.directory.iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    assert store.find(CONDITIONS) is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b" " * 200_000])
def test_a_damaged_file_is_no_verdict(store: VerdictStore, data: bytes) -> None:
    store.put(VERDICT)
    (path,) = store.directory.iterdir()
    path.write_bytes(data)
    assert store.find(CONDITIONS) is None


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "verdicts").write_text("a file")
    with pytest.raises(KvnotesError, match="--cache-dir"):
        VerdictStore(tmp_path / "verdicts").put(VERDICT)


def test_a_verdict_of_the_cpu_does_not_hold_on_a_gpu_nor_the_other_way_round(tiny_engine: MakeEngine) -> None:
    info = tiny_engine("llama").info
    assert conditions_of(info, "k") == conditions_of(replace(info, n_ctx=512), "k")
    assert conditions_of(info, "k") != conditions_of(replace(info, on_gpu=not info.on_gpu), "k")
