"""``kvnotes bench`` as users run it: one row a length, every way timed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from tests.conftest import Run
from tests.zoo import zoo_model

Kvnotes = Callable[..., Run]


def test_every_length_has_a_row_with_all_times(kvnotes: Kvnotes, zoo_directory: Path, tmp_path: Path) -> None:
    picture = tmp_path / "bench.svg"
    arguments = ["--model", zoo_model("llama", zoo_directory), "--threads", 1, "--repeat", 2, "--svg", picture]
    run = kvnotes("bench", "--length", 256, "--length", 512, "--length", 4096, "--n-ctx", 2048, *arguments, "--json")
    assert run.code == 0, run.err
    rows = json.loads(run.out)["rows"]
    assert len(rows) == 2  # 4,096 tokens do not fit twice into the context
    assert "Left out: 4,096 tokens" in run.err
    for row, length in zip(rows, (256, 512), strict=True):
        assert abs(row["n_skill_tokens"] - length) < 0.1 * length
        times = [row[key] for key in ("recompute_ms", "splice_ms", "first_token_ms", "prefix_hit_ms", "whole_ms")]
        assert all(time > 0 for time in times)
        assert row["splice_ms"] < row["first_token_ms"]
        assert row["speedup"] == row["recompute_ms"] / row["first_token_ms"]
        assert set(row["edit_ms"]) == {"erratum", "field", "field+erratum", "window", "full"}
        assert 0 <= row["proof_error"] < 1  # a few milliseconds in all: what is not the engine's counts
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_what_cannot_be_timed_is_said(kvnotes: Kvnotes, zoo_directory: Path) -> None:
    how = ["--threads", 1, "--repeat", 1]
    short = kvnotes("bench", "--n-ctx", 512, "--model", zoo_model("llama", zoo_directory), *how)
    assert short.code == 1
    assert "--n-ctx" in short.err
    mamba = kvnotes("bench", "--model", zoo_model("mamba", zoo_directory), *how)
    assert mamba.code == 1
    assert "nothing to compare" in mamba.err
