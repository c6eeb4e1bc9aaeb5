"""A chat format is found once for a model and remembered; dates in it are those of the day."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from kvnotes_local.chat_format import finding, sandbox
from kvnotes_local.chat_format.format import ChatFormat, FormatSource
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.notebook import segment_factory
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import CompileStatus, SkillCompiler
from kvnotes_local.skills.library import SkillLibrary
from tests.chat_format.chat_templates import CHATML
from tests.chat_format.template_parts import Default, Parts, System
from tests.zoo.templated import model_with_template

DATED = Parts(system=System.BEHIND_TEXT, default=Default.DATED).template()
YESTERDAY = (
    "{% set day = strftime_now('%d') | int - 1 %}{{ bos_token + '<|system|>Yesterday was the ' ~ day ~ '.<|end|>' }}"
    + CHATML
)


class Counter:
    """Counts renderings of templates."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.n = 0
        rendered = sandbox.TemplateRenderer.render

        def render(renderer: sandbox.TemplateRenderer, *args: object, **how: object) -> str:
            self.n += 1
            return rendered(renderer, *args, **how)  # type: ignore[arg-type]

        patch.setattr(sandbox.TemplateRenderer, "render", render)


@pytest.fixture
def renderings(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[datetime], None]:
    """Sets the date that chats and templates see."""

    def set_date(now: datetime) -> None:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
                return now

        monkeypatch.setattr(finding, "datetime", Clock)
        monkeypatch.setattr(segment_factory, "datetime", Clock)

    return set_date


@contextmanager
def opened(path: Path, cache: Path) -> Iterator[LlamaEngine]:
    with LlamaEngine(path, EngineParams(n_ctx=1024, n_threads=1), cache_dir=cache) as engine:
        yield engine


def format_of(path: Path, cache: Path) -> ChatFormat:
    with opened(path, cache) as engine:
        return engine.info.chat_format


@pytest.mark.parametrize("template", [CHATML, DATED], ids=["chatml", "dated"])
def test_the_second_start_renders_nothing(tmp_path: Path, renderings: Counter, template: str) -> None:
    path = model_with_template(tmp_path / "tiny.gguf", template)
    first = format_of(path, tmp_path / "cache")
    assert first.proven
    assert renderings.n > 10
    renderings.n = 0
    assert format_of(path, tmp_path / "cache") == first
    assert renderings.n == 0


def test_a_template_that_computes_with_the_date_is_asked_for_today_only(
    tmp_path: Path, renderings: Counter, clock: Callable[[datetime], None]
) -> None:
    path = model_with_template(tmp_path / "tiny.gguf", YESTERDAY)
    clock(datetime(2026, 12, 5))
    first = format_of(path, tmp_path / "cache")
    assert first.proven
    assert first.computes_date
    renderings.n = 0
    clock(datetime(2026, 12, 9))
    second = format_of(path, tmp_path / "cache")
    assert renderings.n <= 3
    assert second == first
    assert "the 8." in second.on(datetime(2026, 12, 9)).head


def test_another_template_or_a_damaged_memory_is_found_anew(tmp_path: Path, renderings: Counter) -> None:
    cache = tmp_path / "cache"
    first = format_of(model_with_template(tmp_path / "tiny.gguf", CHATML), cache)
    other = format_of(model_with_template(tmp_path / "tiny.gguf", Parts().template()), cache)
    assert other.proven
    assert other != first
    for rubbish in (b"", b"{", b"[]", b'{"head": 3}', os.urandom(64)):
        for remembered in (cache / "formats").iterdir():
            remembered.write_bytes(rubbish)
        renderings.n = 0
        assert format_of(tmp_path / "tiny.gguf", cache) == other
        assert renderings.n > 10


def test_a_template_that_is_not_used_is_said_with_its_reason(tmp_path: Path) -> None:
    path = model_with_template(tmp_path / "tiny.gguf", "{{ messages[-1].content }}")
    with opened(path, tmp_path / "cache") as engine:
        assert engine.info.chat_format.source is FormatSource.PLAIN
        assert engine.info.chat_format.problem is not None
        assert engine.info.chat_format.problem in (engine.info.format_notice or "")


def test_artifacts_are_up_to_date_the_next_morning_and_chats_know_the_new_date(
    tmp_path: Path, clock: Callable[[datetime], None]
) -> None:
    path = model_with_template(tmp_path / "tiny.gguf", DATED)
    folder = tmp_path / "skills" / "lamp"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: lamp\ndescription: d\n---\nThe lamp is green.\n")
    library = SkillLibrary([folder.parent])
    today = datetime(2026, 12, 1)
    for day, status in ((today, CompileStatus.COMPILED), (today + timedelta(days=1), CompileStatus.UP_TO_DATE)):
        clock(day)
        with opened(path, tmp_path / "cache") as engine:
            compiler = SkillCompiler(engine, ArtifactStore(tmp_path / "artifacts"))
            assert compiler.compile(library.get("lamp")).status is status
            for system in (None, "Be kind."):
                notebook = Notebook(engine, system=system, library=library, compiler=compiler)
                assert f"{day:%d %b %Y}" in engine.detokenize(notebook.tokens)
                notebook.close()


def test_an_answer_ends_at_the_marker_that_closes_it_in_the_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vocabulary does not call ``<|finis|>`` an end; what the sampler draws is given, all else is real."""
    path = model_with_template(tmp_path / "tiny.gguf", Parts().template().replace("<|end|>", "<|finis|>"))
    with opened(path, tmp_path / "cache") as engine:
        drawn = iter([*engine.tokenize("Yes."), *engine.tokenize("<|finis|>", special=True), *engine.tokenize("More")])
        monkeypatch.setattr("kvnotes_local.engine.llama.sampling.SamplerChain.sample", lambda chain: next(drawn))
        notebook = Notebook(engine)
        reply = notebook.ask("Is it?", max_tokens=12)
        assert reply.text == "Yes."
        assert engine.detokenize(reply.segment.tokens).endswith("Yes.<|finis|>\n")
