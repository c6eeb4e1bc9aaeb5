"""The gate on the embedded model: a real skill passes, and with a wrong rotation it fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.evaluation.questions import bundled_contexts
from kvnotes_local.evaluation.verification import Effort, verify_skill
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary
from tests.conftest import REPOSITORY
from tests.evaluation.test_gate import wrong_rotation

pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.fixture(scope="module")
def engine(smollm2_path: Path, measurements: Path) -> Iterator[LlamaEngine]:
    with LlamaEngine(smollm2_path, EngineParams(n_ctx=2048, n_threads=1), cache_dir=measurements) as engine:
        yield engine


def test_a_real_skill_passes_and_wrong_rows_of_it_fail(
    engine: LlamaEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = SkillCompiler(engine, ArtifactStore(tmp_path))
    skill = SkillLibrary([REPOSITORY / "skills_cache"]).get("night-clerk")
    effort = Effort(bundled_contexts(engine)[:1], seams=(0,), n_positions=12, n_questions=1)
    right = verify_skill(engine, compiler, skill, None, effort=effort)
    assert right.passed
    assert right.best.fidelity.cosine_mean >= 0.998
    wrong_rotation(engine, monkeypatch)
    wrong = verify_skill(engine, compiler, skill, None, effort=effort)
    assert not wrong.passed
    assert wrong.best.fidelity.kl_mean > 3 * right.best.fidelity.kl_mean
