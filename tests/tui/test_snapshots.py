"""How the screens look, at two sizes. The messages behind them are asserted in the other modules."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvnotes_local.errors import EngineCrashed, EngineError
from kvnotes_local.evaluation.bench_row import BenchRow, SpliceStages
from kvnotes_local.models.memory import MemoryEstimate
from kvnotes_local.notebook import asking, listening
from kvnotes_local.notebook.store import chats as chat_store
from kvnotes_local.skills.verdicts import Conditions, Outcome, Verdict
from kvnotes_local.tui.news import BenchDone, ChatsListed, MemoryEstimated, ModelsListed
from kvnotes_local.tui.views import ModelRow
from kvnotes_local.tui.widgets.transcript import Transcript
from tests.tui.fake_engine import Script
from tests.tui.snapshot import DIRECTORY, Album
from tests.tui.stage import Stage, on_stage, start

Scene = Callable[[Stage, Album], Awaitable[None]]
SIZES = ((80, 24), (120, 40))
MARKDOWN = """\
<think>They want to see Markdown.</think>Here is **all** of it:

```python
def may_return(days: int) -> bool:
    return days <= 30
```

| goods | days |
|---|---|
| lamps | 30 |

1. Ask for the receipt
2. Be *polite*
"""

STAGES = SpliceStages(1, 2, 3, 4, 5, 6, 7)


@pytest.fixture(autouse=True)
def _same_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Clocks, ids, memory and places that look alike on every machine."""
    clock = count()
    ids = count(0xA1B2C3D4, 0x01010101)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    ticking = SimpleNamespace(perf_counter=lambda: next(clock) / 8, time=lambda: 1_800_000_000.0 + next(clock))
    for module in (asking, chat_store, listening):
        monkeypatch.setattr(module, "time", ticking)
    monkeypatch.setattr(secrets, "token_hex", lambda n: f"{next(ids):08x}")
    monkeypatch.setattr("kvnotes_local.models.scan.embedded_model", lambda: None)


@pytest.fixture(
    params=[SIZES[0], pytest.param(SIZES[1], marks=pytest.mark.slow)], ids=lambda size: f"{size[0]}x{size[1]}"
)
def album(request: pytest.FixtureRequest, tmp_path: Path) -> Album:
    return Album(request.param, tmp_path)


def play(scene: Scene, album: Album, script: Script | None = None, *, ready: bool = True, **how: object) -> None:
    script = script or Script()

    async def main() -> None:
        begin = start(Path("home"), script, **how)  # type: ignore[arg-type]
        async with on_stage(begin, script, size=album.size, ready=ready) as stage:
            await scene(stage, album)

    asyncio.run(main())
    assert not album.differences, "\n".join(album.differences)


def test_the_first_start(album: Album) -> None:
    async def scene(stage: Stage, album: Album) -> None:
        await album.shot(stage, "welcome")
        stage.script.loading.close()
        await stage.pilot.press("enter")
        await stage.until(lambda: "50%" in stage.text)
        await album.shot(stage, "loading")
        stage.script.loading.open()
        await stage.idle()
        await album.shot(stage, "ready")

    play(scene, album, model=None, embedded=Path("/models/Small-1B.gguf"))


def test_a_chat_with_a_splice_and_an_edit(album: Album) -> None:
    async def scene(stage: Stage, album: Album) -> None:
        await stage.say("Show me what you can do")
        await album.shot(stage, "answer")
        stage.script.answer = "It is 30 days."
        await stage.say("/skill refund-policy")
        await stage.say("How long is the refund window?")
        await album.shot(stage, "splice")
        await stage.say("/set refund window = 45 days")
        await album.shot(stage, "edit")
        await stage.pilot.press("ctrl+b")
        await album.shot(stage, "panel")
        await stage.pilot.press("ctrl+b")
        stage.app.screen.query_one(Transcript).turns[-2].focus()
        await album.shot(stage, "turn")
        stage.composer.write("/s")
        await stage.until(lambda: "splice a skill" in stage.text)
        await album.shot(stage, "completion")
        stage.composer.write("")
        stage.app.screen.query_one(Transcript).turns[-3].focus()
        await stage.pilot.press("e")
        await album.shot(stage, "editing")
        await stage.pilot.press("escape")
        stage.app.theme = "kvnotes-day"
        await album.shot(stage, "day")

    play(scene, album, Script(answer=MARKDOWN))


def test_while_it_works(album: Album) -> None:
    async def scene(stage: Stage, album: Album) -> None:
        stage.script.reading.close()
        await stage.write("A long question")
        await stage.until(stage.script.reading.reached.is_set)
        await stage.until(lambda: "0 of " in stage.text)
        await album.shot(stage, "reading")
        stage.script.reading.open()
        stage.script.say("<think>", "Let me see")
        await stage.until(lambda: "Thinking" in stage.text)
        await album.shot(stage, "thinking")
        stage.script.say("</think>", "Well", " then,")
        await stage.until(lambda: "Well then," in stage.text)
        await album.shot(stage, "streaming")
        await stage.pilot.press("ctrl+q")
        await stage.until(lambda: "What was said so far is kept" in stage.text)
        await album.shot(stage, "quit")
        await stage.pilot.press("escape")
        await stage.pilot.press("escape")
        await stage.idle()
        await album.shot(stage, "stopped")
        stage.script.fail = EngineError("llama.cpp ran out of memory. Use a smaller --n-ctx.")
        await stage.say("Once more")
        await album.shot(stage, "failure")
        died = "The engine process ended with SIGSEGV while reading or splicing. It did so twice."
        stage.script.fail, stage.script.n_fails = EngineCrashed(died, operation="apply", again=True), 2
        await stage.say("And again")
        await album.shot(stage, "safer")

    play(scene, album, Script(answer=None))


def test_the_skills_screen(album: Album) -> None:
    async def scene(stage: Stage, album: Album) -> None:
        stage.app.action_go("skills")
        await stage.pilot.pause()
        await stage.idle()
        await album.shot(stage, "skills")
        stage.script.compiling.close()
        await stage.pilot.press("down", "c")
        await stage.until(lambda: "136 of" in stage.text)
        await album.shot(stage, "compiling")
        stage.script.compiling.open()
        await stage.idle()
        await stage.idle()
        await album.shot(stage, "compiled")
        skill = stage.app.session.skills[1]
        verdict = Verdict(
            Conditions("k", "F16/F16", "b"),
            Outcome.PASSED,
            skill.name,
            "Tiny-1B",
            8,
            0.9991,
            0.0082,
            0.0032,
            0.98,
            0.99,
            128,
            "",
        )
        current = replace(skill.compiled[0], verdict=verdict)
        stage.app.session = replace(
            stage.app.session, skills=(stage.app.session.skills[0], replace(skill, compiled=(current,)))
        )
        stage.app.screen._show_all()  # type: ignore[attr-defined]
        await album.shot(stage, "verified")

    play(scene, album)


def test_the_chats_screen(album: Album) -> None:
    async def scene(stage: Stage, album: Album) -> None:
        stage.app.action_go("chats")
        await stage.pilot.pause()
        await stage.idle()
        await album.shot(stage, "chats-none")
        stage.app.action_go("chat")
        await stage.say("Where is the lighthouse?")
        await stage.say("/fork")
        await stage.say("And the harbour?")
        stage.app.action_go("chats")
        await stage.until(lambda: len(stage.heard(ChatsListed)[-1].chats) == 2)
        await stage.idle()
        await album.shot(stage, "chats")
        await stage.pilot.press("slash", *"harbour", "enter")
        await stage.idle()
        await album.shot(stage, "chats-search")

    play(scene, album)


def test_the_models_screen(album: Album) -> None:
    models = (
        ModelRow(
            Path("/models/Small-llama-Q4_K_M.gguf"), "Small-llama-Q4_K_M", "given", 97 << 20, "llama", "Q4_K_M", 8192
        ),
        ModelRow(
            Path("/models/Large-qwen3-Q8_0.gguf"), "Large-qwen3-Q8_0", "LM Studio", 9 << 30, "qwen3", "Q8_0", 131072
        ),
        ModelRow(Path("/models/torn.gguf"), "torn", "given", 12345, "", "", 0, "/models/torn.gguf ends too early"),
    )

    async def scene(stage: Stage, album: Album) -> None:
        stage.app.action_go("models")
        await stage.pilot.pause()
        await stage.idle()
        stage.app._deliver([ModelsListed(models, ())])
        await stage.idle()
        stage.app._deliver([MemoryEstimated(models[0].path, MemoryEstimate(180 << 20, 98 << 20, 97 << 20, 16 << 30))])
        await album.shot(stage, "models")

    play(scene, album)


def test_settings_log_help_palette_and_bench(album: Album) -> None:
    async def scene(stage: Stage, album: Album) -> None:
        for mode in ("settings", "log", "help", "bench"):
            stage.app.action_go(mode)
            await stage.pilot.pause()
            await stage.idle()
            await album.shot(stage, mode)
        rows = tuple(
            BenchRow(n, 200, 8, 3, 6 * n, 4 * n, 40, n / 20, 50.0, 90.0, 4 * n / 50, {}, 3, 0.1, 2, 6 * n, STAGES, 0.01)
            for n in (256, 1024)
        )
        stage.app.news.publish(BenchDone("Tiny-1B, KV F16", rows))
        await album.shot(stage, "bench-done")
        stage.app.action_go("chat")
        await stage.pilot.press("ctrl+p")
        await stage.until(lambda: "show this screen (F2)" in stage.text)
        await album.shot(stage, "palette")

    play(scene, album)


def test_without_colours(album: Album, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def scene(stage: Stage, album: Album) -> None:
        await stage.say("/skill refund-policy")
        await stage.say("/set refund window = 45 days")
        await album.shot(stage, "no-color")

    play(scene, album)


def test_there_are_enough_pictures() -> None:
    kept = list(DIRECTORY.glob("*.svg.gz"))
    assert len(kept) >= 40
    assert {path.name.rsplit("-", 1)[1] for path in kept} == {f"{w}x{h}.svg.gz" for w, h in SIZES}
