"""Studies on tiny models: exact splices are within noise, wrong ones are told apart, and the report holds every section."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.errors import KvnotesError
from kvnotes_local.evaluation.decision_cases import DecisionCase, DecisionText
from kvnotes_local.evaluation.statistics import estimate
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from studies.edit_levels import LEVELS, EditStudy, measure_edits, summarize_edits
from studies.report import edits_table
from studies.scenarios import agent, toggle
from studies.skill_study import study_skill, study_together
from studies.skill_ways import lead_ways, seam_ways
from tests.conftest import REPOSITORY
from tests.evaluation.samples import QUESTIONS, contexts, library, single_layer_model

TEXT = DecisionText(
    "roof",
    "The roof is {{roof|open}}. The pool is {{pool|warm}}.",
    (
        DecisionCase("roof", ("open", "shut"), ("Yes", "No"), "Is the roof open?"),
        DecisionCase("pool", ("warm", "cold"), ("Yes", "No"), "Is the pool warm?"),
    ),
)


@pytest.fixture
def engine(zoo_directory: Path, measurements: Path) -> Iterator[LlamaEngine]:
    params = EngineParams(n_ctx=4096, type_k=GGMLType.F16, type_v=GGMLType.F16, n_threads=1)
    with LlamaEngine(single_layer_model(zoo_directory), params, cache_dir=measurements) as engine:
        yield engine


def test_a_study_tells_right_rows_from_wrong_ones(engine: LlamaEngine, tmp_path: Path) -> None:
    compiled = SkillCompiler(engine, ArtifactStore(tmp_path / "artifacts")).compile(
        library(tmp_path / "skills").get("lamp")
    )
    ways = {**lead_ways(engine, compiled, tmp_path), **seam_ways(engine, compiled, tmp_path, n_seam=2)}
    study = study_skill(engine, compiled, contexts(engine), QUESTIONS, ways=ways, seams=(0, 8), n_positions=6)
    rows = {row.way: row for row in study.rows}
    # In a model of one layer every lead gives the same rows; turning them, and having them at all, is what matters.
    assert all(row.kl.mean < 1e-3 for way, row in rows.items() if way.startswith(("artifact", "lead", "seam")))
    assert sum(way.startswith("seam") for way in rows) == 5
    for wrong in ("keys not turned", "without the skill"):
        assert rows[wrong].kl.mean > 0.02
        assert rows[wrong].versus is not None
        assert rows[wrong].versus.differs
        assert rows[wrong].versus.low > 0


def test_several_skills_are_studied_together(engine: LlamaEngine, tmp_path: Path) -> None:
    compiler = SkillCompiler(engine, ArtifactStore(tmp_path / "artifacts"))
    library(tmp_path / "skills", "The red bike is in the yard.", "bike")
    both = [compiler.compile(library(tmp_path / "skills").get(name)) for name in ("bike", "lamp")]
    study = study_together(engine, both, contexts(engine)[:1], QUESTIONS, seams=(0, 4), n_positions=4)
    assert study.n_tokens == sum(one.n_tokens for one in both)
    assert [row.kl.mean < 1e-3 for row in study.rows] == [True, True]


def test_edits_in_a_model_without_notes_are_those_of_recompute(engine: LlamaEngine) -> None:
    row = toggle(engine, TEXT, EditLevel.FIELD, n=4)
    assert (row.n, row.same) == (4, 4)
    assert row.cosine_min > 0.999
    assert row.first_token_ms > 0
    assert row.recompute_ms > 0
    assert toggle(engine, TEXT, EditLevel.ERRATUM, n=4).cosine_min < row.cosine_min


def test_questions_that_are_taken_back_leave_no_trace_in_the_next_ones(engine: LlamaEngine) -> None:
    """With the same value, each is asked in the same chat as the one before last."""
    apart = toggle(engine, TEXT, EditLevel.ERRATUM, n=4, apart=True)
    assert apart.first_half == pytest.approx(apart.second_half, abs=1e-4)
    kept = toggle(engine, TEXT, EditLevel.ERRATUM, n=4)
    assert kept.first_half != pytest.approx(kept.second_half, abs=1e-4)


def test_the_table_of_edits_is_over_those_that_flip(engine: LlamaEngine) -> None:
    outcomes = [one for text in (TEXT, TEXT.reversed()) for one in measure_edits(engine, text)]
    assert {one.change for one in outcomes} == {
        "roof: open → shut",
        "roof: shut → open",
        "pool: warm → cold",
        "pool: cold → warm",
    }
    for one in outcomes:  # without notes, the value in its place is all there is
        if one.level in (EditLevel.FIELD, EditLevel.FULL):
            assert one.margin == pytest.approx(one.margin_after, abs=1e-2)
    # One direction that flips, whatever this model answers: a margin that goes from above zero to below.
    flipping = [replace(one, margin_before=1.0, margin_after=-1.0, margin=-0.5) for one in outcomes[: len(LEVELS)]]
    rows = summarize_edits([*outcomes[len(LEVELS) :], *flipping])
    by_level = {row.level: row for row in rows}
    assert set(by_level) == set(LEVELS)
    n = 1 + sum(one.flips for one in outcomes[len(LEVELS) :]) // len(LEVELS)
    assert all(row.n == n for row in rows)
    table = edits_table(EditStudy(tuple(flipping), tuple(rows)))
    assert "roof: open → shut | yes | +1.00 | -0.50" in table
    assert "of 1 edit flip" in table
    nothing = edits_table(EditStudy(tuple(replace(one, margin_after=2.0) for one in flipping), ()))
    assert "0 of 1 edit flip" in nothing
    assert "nothing to bring round" in nothing


def test_the_agent_asks_three_questions_a_domain(engine: LlamaEngine) -> None:
    (row,) = agent(engine, [TEXT])
    assert row.n == 3
    assert 0 <= row.same <= 3


def test_intervals_hold_the_mean_and_grow_when_positions_hang_together() -> None:
    rng = np.random.default_rng(1)
    answers = np.repeat(rng.normal(1.0, 0.5, 20), 16)
    apart = estimate(answers)
    groups = estimate(answers, np.repeat(np.arange(20), 16))
    assert apart.mean == groups.mean == pytest.approx(answers.mean())
    assert groups.high - groups.low > 2 * (apart.high - apart.low)
    assert groups.low < groups.mean < groups.high
    assert not estimate([-1.0, 1.0, -1.0, 1.0]).differs
    assert estimate([1.0, 1.1, 0.9]).differs
    with pytest.raises(ValueError, match="at least one"):
        estimate([])


@pytest.fixture
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("paper_tables", REPOSITORY / "scripts" / "paper_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["paper_tables"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["paper_tables"]


def measuring(tmp_path: Path, zoo_directory: Path, out: Path) -> list[object]:
    model = single_layer_model(zoo_directory)
    return ["--model", model, "--out", out, "--work", tmp_path / "work", "--threads", 1]


def test_the_report_has_the_sections_that_were_measured(
    script: ModuleType, tmp_path: Path, zoo_directory: Path
) -> None:
    library(tmp_path / "skills")
    out = tmp_path / "report.md"
    arguments = measuring(tmp_path, zoo_directory, out)
    small = [
        "--contexts",
        1,
        "--questions",
        1,
        "--positions",
        2,
        "--skill",
        "lamp",
        "--skills-dir",
        tmp_path / "skills",
    ]
    script.main([str(one) for one in (*arguments, *small, "--only", "leads", "--only", "agent", "--domains", 1)])
    text = out.read_text("utf-8")
    assert "## Seam, lead and rotation" in text
    assert "keys not turned" in text
    assert "## Skills taken in and edited" in text
    assert "## Where the notes are" not in text
    assert str(tmp_path) not in text
    before = out.stat().st_mtime_ns
    script.main([str(one) for one in (*arguments, "--only", "leads")])  # from what was kept: no measuring
    assert out.stat().st_mtime_ns > before
    assert out.read_text("utf-8") == text
    (kept,) = (tmp_path / "work").glob("*/leads.json")
    kept.write_text(kept.read_text("utf-8").replace('"mean"', '"middle"'), "utf-8")
    with pytest.raises(KvnotesError, match=r"leads\.json is no result of this version .*: delete it to measure"):
        script.main([str(one) for one in (*arguments, "--only", "leads")])


def test_a_section_that_fails_is_said_and_left_out(
    script: ModuleType, tmp_path: Path, zoo_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other sections are measured and kept."""
    library(tmp_path / "skills")
    out = tmp_path / "report.md"
    arguments = measuring(tmp_path, zoo_directory, out)
    sections = [
        "--only",
        "leads",
        "--only",
        "agent",
        "--domains",
        1,
        "--skill",
        "no-such",
        "--skills-dir",
        tmp_path / "skills",
    ]
    assert script.main([str(one) for one in (*arguments, *sections)]) == 1
    told = capsys.readouterr().err
    assert "leads: There is no skill" in told
    assert "was written, without leads" in told
    text = out.read_text("utf-8")
    assert "## Skills taken in and edited" in text
    assert "## Seam, lead and rotation" not in text
