"""The gate: passes where splicing is exact, and fails for every way in which rows can be wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.compiling import artifact_compiler
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.evaluation.fidelity import NoiseSource, measure_noise, measure_splice, recompute
from kvnotes_local.evaluation.gate import GateResult, run_gate
from kvnotes_local.evaluation.verification import Effort, other_engines, verify_skill, verify_together
from kvnotes_local.kv.layout import GGMLType, StateLayout, StateRows
from kvnotes_local.kv.rotation import ModelRotation
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.segment import Freshness
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler, default_repair
from kvnotes_local.skills.verdicts import Outcome, VerdictStore
from tests.evaluation.samples import QUESTIONS, contexts, library, single_layer_model

OpenEngine = Callable[..., LlamaEngine]


@pytest.fixture
def open_engine(zoo_directory: Path, measurements: Path) -> Iterator[OpenEngine]:
    engines = []

    def open_one(kv_type: GGMLType = GGMLType.F16, **params: object) -> LlamaEngine:
        engine = LlamaEngine(
            single_layer_model(zoo_directory),
            EngineParams(n_ctx=2048, type_k=kv_type, type_v=kv_type, n_threads=1, **params),  # type: ignore[arg-type]
            cache_dir=measurements,
        )
        engines.append(engine)
        return engine

    yield open_one
    for engine in engines:
        engine.close()


def gate(engine: LlamaEngine, tmp_path: Path, seams: tuple[int, ...] = (0, 2)) -> GateResult:
    compiler = SkillCompiler(engine, ArtifactStore(tmp_path / "artifacts"))
    compiled = compiler.compile(library(tmp_path / "skills").get("lamp"))
    return run_gate(engine, [compiled], contexts(engine), QUESTIONS, seams=seams, n_positions=12)


@pytest.mark.parametrize("kv_type", [GGMLType.F16, GGMLType.Q8_0])
def test_exact_splices_pass_without_a_seam(open_engine: OpenEngine, tmp_path: Path, kv_type: GGMLType) -> None:
    result = gate(open_engine(kv_type), tmp_path)
    assert result.passed
    assert result.best.repair_tokens == 0
    assert result.best.fidelity.kl_mean < 1e-3
    assert result.best.fidelity.n_positions > 0


def wrong_rotation(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    caches = tuple(
        tuple(replace(layer, frequencies=0.9 * layer.frequencies, arithmetic=None) for layer in cache)
        for cache in engine.rotation.caches
    )
    monkeypatch.setattr(engine._transfer, "_rotation", ModelRotation(caches))


def missing_hadamard(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    caches = tuple(replace(cache, k_hadamard=0, v_hadamard=0) for cache in engine.layout.caches)
    assert caches != engine.layout.caches, "the cache has no Hadamard transform that could be missing"
    monkeypatch.setattr(engine._transfer, "_layout", StateLayout(caches))


def shifted_position(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    write = engine._transfer.write

    def off_by_two(rows: StateRows, target: int, start: int, stats: object) -> None:
        caches = tuple(replace(cache, pos=cache.pos - np.int32(2)) for cache in rows.caches)
        relabelled = replace(rows, caches=caches)
        write(relabelled, target, start, stats)  # type: ignore[arg-type]

    monkeypatch.setattr(engine._transfer, "write", off_by_two)


@pytest.mark.parametrize(
    ("fault", "kv_type"),
    [
        (wrong_rotation, GGMLType.F16),
        (wrong_rotation, GGMLType.Q8_0),
        (missing_hadamard, GGMLType.Q8_0),
        (shifted_position, GGMLType.F16),
    ],
)
def test_rows_that_are_wrong_fail_with_every_seam(
    fault: Callable[[LlamaEngine, pytest.MonkeyPatch], None],
    kv_type: GGMLType,
    open_engine: OpenEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = open_engine(kv_type)
    compiler = SkillCompiler(engine, ArtifactStore(tmp_path / "artifacts"))
    compiler.compile(library(tmp_path / "skills").get("lamp"))
    fault(engine, monkeypatch)
    result = gate(engine, tmp_path)
    assert not result.passed
    assert [trial.repair_tokens for trial in result.trials] == [0, 2]
    assert all(trial.failures for trial in result.trials)


def test_an_artifact_of_an_older_text_fails(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = open_engine()
    compiler = SkillCompiler(engine, ArtifactStore(tmp_path / "artifacts"))
    old = compiler.compile(library(tmp_path / "old", "The red lamp costs zero marks. " * 3).get("lamp"))
    new = compiler.compile(library(tmp_path / "new", "The blue lamp costs nine mark. " * 3).get("lamp"))
    assert old.n_tokens == new.n_tokens
    good = run_gate(engine, [new], contexts(engine), QUESTIONS, seams=(0,), n_positions=12)
    stale = run_gate(engine, [replace(new, path=old.path)], contexts(engine), QUESTIONS, seams=(0,), n_positions=12)
    assert good.passed
    assert not stale.passed


def test_a_floor_is_found_where_other_batches_change_nothing(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = open_engine(GGMLType.Q8_0)
    compiled = SkillCompiler(engine, ArtifactStore(tmp_path / "artifacts")).compile(
        library(tmp_path / "skills").get("lamp")
    )
    reference = recompute(engine, [compiled], contexts(engine)[:1], QUESTIONS, n_positions=4)
    alone = measure_noise(engine, reference, None)
    floor = measure_noise(engine, reference, other_engines(engine))
    assert alone.source is NoiseSource.BATCH_SPLIT
    if alone.fidelity.moved:
        assert floor.source is NoiseSource.BATCH_SPLIT
    else:
        assert floor.source is NoiseSource.OTHER_KV
        assert floor.fidelity.kl_mean > 0


def test_together_skills_are_spliced_one_behind_the_other(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = open_engine()
    compiler = SkillCompiler(engine, ArtifactStore(tmp_path / "artifacts"))
    library(tmp_path / "skills", "The red bike is in the yard.", "bike")
    skills = library(tmp_path / "skills")
    result = verify_together(
        engine,
        compiler,
        [skills.get("bike"), skills.get("lamp")],
        effort=Effort(contexts(engine)[:1], seams=(0,), n_positions=4),
    )
    assert result.passed
    assert [one.skill.name for one in result.skills] == ["bike", "lamp"]
    swapped = measure_splice(
        engine, recompute(engine, result.skills[::-1], contexts(engine)[:1], QUESTIONS, n_positions=4), 0
    )
    assert swapped.kl_mean < 1e-3


class Chat:
    """A notebook with a gate of its own folder."""

    def __init__(self, engine: LlamaEngine, tmp_path: Path) -> None:
        self.verdicts = VerdictStore(tmp_path / "verdicts")
        self.compiler = SkillCompiler(engine, ArtifactStore(tmp_path / "artifacts"), verdicts=self.verdicts)
        self.library = library(tmp_path / "skills")
        self.notices: list[str] = []
        self.notebook = Notebook(engine, library=self.library, compiler=self.compiler, on_notice=self.notices.append)

    def verify(self, engine: LlamaEngine) -> GateResult:
        effort = Effort(contexts(engine)[:1], n_positions=8)
        return verify_skill(engine, self.compiler, self.library.get("lamp"), self.verdicts, effort=effort)


def test_a_skill_that_passed_is_spliced_with_the_measured_seam(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = open_engine()
    chat = Chat(engine, tmp_path)
    assert chat.compiler.compile(chat.library.get("lamp")).repair_tokens == default_repair(engine.info)
    assert chat.verify(engine).best.repair_tokens == 0
    verdict = chat.compiler.compile(chat.library.get("lamp")).verdict
    assert verdict is not None
    chat.verdicts.put(replace(verdict, repair_tokens=3))
    segment = chat.notebook.splice("lamp")
    assert next((run.freshness, run.n_tokens) for run in segment.runs) == (Freshness.REPAIRED, 3)
    assert chat.notices == []


def test_a_skill_that_failed_is_read_and_the_user_is_told(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    chat = Chat(engine, tmp_path)
    with monkeypatch.context() as patch:
        wrong_rotation(engine, patch)
        assert not chat.verify(engine).passed
    segment = chat.notebook.splice("lamp")
    assert [run.freshness for run in segment.runs] == [Freshness.FRESH]
    assert len(chat.notices) == 1
    assert "lamp" in chat.notices[0]


def test_another_number_of_leads_is_tried_where_the_usual_one_fails(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    chat = Chat(engine, tmp_path)
    skill = chat.library.get("lamp")
    average = artifact_compiler.average_rows

    def halved(parts: Sequence[StateRows], *more: object) -> StateRows:
        """Averages that are wrong, as with models whose keys have a fixed length: only single leads are right."""
        mean = average(parts)
        caches = tuple(
            replace(cache, k=tuple((0.2 * k.view(np.float16)).astype(np.float16).view(np.uint8) for k in cache.k))
            for cache in mean.caches
        )
        return replace(mean, caches=caches)

    monkeypatch.setattr(artifact_compiler, "average_rows", halved)
    result = chat.verify(engine)
    assert result.passed
    assert result.n_leads == 1
    spliced = chat.compiler.compile(skill)
    assert (spliced.n_leads, spliced.repair_tokens) == (1, 0)
    assert chat.notebook.splice("lamp").freshness is Freshness.SPLICED
    assert chat.notices == []


def test_a_seam_that_was_asked_for_and_failed_is_no_verdict(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    chat = Chat(engine, tmp_path)
    with monkeypatch.context() as patch:
        wrong_rotation(engine, patch)
        effort = Effort(contexts(engine)[:1], seams=(0,), n_positions=8)
        skill = chat.library.get("lamp")
        assert not verify_skill(engine, chat.compiler, skill, chat.verdicts, effort=effort).passed
    assert chat.compiler.verdict(skill) is None


@pytest.mark.parametrize("overrule", [{"repair": 2}, {"heed_verdict": False}])
def test_the_user_overrules_a_verdict(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrule: dict[str, object]
) -> None:
    engine = open_engine()
    chat = Chat(engine, tmp_path)
    with monkeypatch.context() as patch:
        wrong_rotation(engine, patch)
        chat.verify(engine)
    segment = chat.notebook.splice("lamp", **overrule)  # type: ignore[arg-type]
    assert segment.freshness is Freshness.SPLICED
    assert chat.notices == []


def test_a_verdict_is_stale_when_text_kv_type_or_values_change(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = open_engine()
    chat = Chat(engine, tmp_path)
    chat.verify(engine)
    verdict = chat.compiler.verdict(chat.library.get("lamp"))
    assert verdict is not None
    assert verdict.outcome is Outcome.PASSED
    assert Chat(open_engine(GGMLType.Q8_0), tmp_path).compiler.verdict(chat.library.get("lamp")) is None
    changed = library(tmp_path / "skills", "The blue lamp costs ten marks.")
    assert chat.compiler.verdict(changed.get("lamp")) is None
