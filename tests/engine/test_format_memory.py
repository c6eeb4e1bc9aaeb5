"""A chat format is proven once: a known model starts without it, another one, or a damaged memory, finds it anew."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from kvnotes_local.chat_format.format import ChatFormat, FormatSource
from kvnotes_local.chat_format.sandbox import TemplateRenderer
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine import format_memory
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import CompileStatus, SkillCompiler
from kvnotes_local.skills.library import SkillLibrary
from tests.chat_format.templated_model import templated_model
from tests.zoo.vocabulary import CHATML_TEMPLATE

DATED = (
    "{{ '<|im_start|>system\nToday is ' + strftime_now('%d %B %Y') + '.' }}"
    + (
        "{% if messages[0].role == 'system' %}{{ '\n' + messages[0].content }}{% set rest = messages[1:] %}"
        "{% else %}{% set rest = messages %}{% endif %}{{ '<|im_end|>\n' }}"
    )
    + CHATML_TEMPLATE.replace("in messages", "in rest")
)
COMPUTED = DATED.replace("strftime_now('%d %B %Y')", "(strftime_now('%Y') | int - 1) | string")


class Renderings:
    """Counts what templates are rendered."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.n = 0
        real = TemplateRenderer.render

        def render(renderer: TemplateRenderer, *args: object, **how: object) -> str:
            self.n += 1
            return real(renderer, *args, **how)  # type: ignore[arg-type]

        patch.setattr(TemplateRenderer, "render", render)

    def during(self, act: Callable[[], ChatFormat]) -> tuple[ChatFormat, int]:
        before = self.n
        return act(), self.n - before


@pytest.fixture
def renderings(monkeypatch: pytest.MonkeyPatch) -> Renderings:
    return Renderings(monkeypatch)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("templated")
    made: dict[str, Path] = {}

    def get(template: str) -> Path:
        if template not in made:
            made[template] = templated_model(folder / f"{len(made)}.gguf", template)
        return made[template]

    return get


def start(path: Path, cache: Path) -> ChatFormat:
    with LlamaEngine(path, EngineParams(n_ctx=256, n_threads=1), cache_dir=cache) as engine:
        return engine.info.chat_format


class Clock(datetime):
    """The clock of the modules that ask for the date."""

    instant = datetime(2026, 5, 6, 12)

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return cls.instant


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(Clock, "instant", datetime(2026, 5, 6, 12))
    monkeypatch.setattr("kvnotes_local.chat_format.finding.datetime", Clock)
    monkeypatch.setattr("kvnotes_local.notebook.segment_factory.datetime", Clock)
    return Clock


@pytest.mark.parametrize("template", [CHATML_TEMPLATE, DATED], ids=["without a date", "with the date"])
def test_a_known_model_starts_without_a_rendering(
    model: Callable[[str], Path], renderings: Renderings, tmp_path: Path, template: str
) -> None:
    first, n_first = renderings.during(lambda: start(model(template), tmp_path))
    again, n_again = renderings.during(lambda: start(model(template), tmp_path))
    assert first.proven
    assert (again, again.today) == (first, first.today)
    assert n_first > 0
    assert n_again == 0


def test_a_template_that_computes_with_the_date_gets_todays_texts_at_each_start(
    model: Callable[[str], Path], renderings: Renderings, clock: type[Clock], tmp_path: Path
) -> None:
    first = start(model(COMPUTED), tmp_path)
    assert first.computes_date
    assert "Today is 2025." in first.on(clock.now()).head
    clock.instant += timedelta(days=365)
    again, n_again = renderings.during(lambda: start(model(COMPUTED), tmp_path))
    assert "Today is 2026." in again.on(clock.now()).head
    assert again == first, "what keys are made of stays"
    assert 0 < n_again <= 4


def test_another_template_or_vocabulary_is_found_anew(
    model: Callable[[str], Path], renderings: Renderings, tmp_path: Path
) -> None:
    start(model(CHATML_TEMPLATE), tmp_path / "cache")
    dated, n_dated = renderings.during(lambda: start(model(DATED), tmp_path / "cache"))
    assert "Today is" in dated.head
    assert n_dated > 0
    more = templated_model(tmp_path / "more.gguf", CHATML_TEMPLATE, markers=["<more>"])
    assert renderings.during(lambda: start(more, tmp_path / "cache"))[1] > 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"",
        lambda text: text[: len(text) // 2],
        lambda text: b"\x00\xff not json",
        lambda text: b"[]",
        lambda text: b"{}",
        lambda text: text.replace(b'"turn"', b'"gossip"'),
        lambda text: b"[" * 100_000,
    ],
    ids=["empty", "cut", "bytes", "a list", "no fields", "an unknown word", "nested"],
)
def test_a_damaged_memory_is_found_anew(
    model: Callable[[str], Path], renderings: Renderings, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    first = start(model(CHATML_TEMPLATE), tmp_path)
    (path,) = (tmp_path / "formats").iterdir()
    good = path.read_bytes()
    path.write_bytes(damage(good))
    again, n = renderings.during(lambda: start(model(CHATML_TEMPLATE), tmp_path))
    assert again == first
    assert n > 0
    assert path.read_bytes() == good
    path.unlink()
    path.mkdir()
    assert start(model(CHATML_TEMPLATE), tmp_path) == first


def test_another_version_of_the_proof_is_found_anew(
    model: Callable[[str], Path], renderings: Renderings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start(model(CHATML_TEMPLATE), tmp_path)
    monkeypatch.setattr(format_memory, "FINDING_VERSION", format_memory.FINDING_VERSION + 1)
    assert renderings.during(lambda: start(model(CHATML_TEMPLATE), tmp_path))[1] > 0


def test_a_cache_that_cannot_be_written_costs_time_only(model: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "formats").write_text("in the way")  # root may write into read-only folders, so a file stands there
    assert start(model(CHATML_TEMPLATE), tmp_path).source is FormatSource.TEMPLATE


def test_artifacts_are_up_to_date_one_day_later_and_new_chats_hold_the_new_date(
    model: Callable[[str], Path], clock: type[Clock], tmp_path: Path
) -> None:
    folder = tmp_path / "skills" / "lamp"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: lamp\ndescription: d\n---\nThe lamp is green.\n")
    library = SkillLibrary([folder.parent])
    starts: list[str] = []
    statuses: list[CompileStatus] = []
    for _ in range(2):
        with LlamaEngine(model(DATED), EngineParams(n_ctx=2048, n_threads=1), cache_dir=tmp_path / "c") as engine:
            compiler = SkillCompiler(engine, ArtifactStore(tmp_path / "a"))
            statuses.append(compiler.compile(library.get("lamp")).status)
            notebooks = [
                Notebook(engine, library=library, compiler=compiler, system=text) for text in (None, "Be kind.")
            ]
            starts += [engine.detokenize(notebook.tokens) for notebook in notebooks]
        clock.instant += timedelta(days=1)
    assert statuses == [CompileStatus.COMPILED, CompileStatus.UP_TO_DATE]
    dates = ["06 May 2026", "06 May 2026", "07 May 2026", "07 May 2026"]
    assert all(date in text for date, text in zip(dates, starts, strict=True)), starts
