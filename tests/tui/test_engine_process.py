"""The screens with the real engine in its process, on a tiny model."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from kvnotes_local.engine.child_engine import ChildEngine
from kvnotes_local.engine.engine_params import EngineParams
from kvnotes_local.tui.launch import open_engine
from kvnotes_local.tui.news import AnswerEnded, BenchDone, ChatVerified, Failure, SkillVerified
from tests.tui.conftest import Play
from tests.tui.stage import Stage, places
from tests.zoo import zoo_model


def real(tmp_path: Path, zoo_directory: Path, n_ctx: int = 1024) -> dict[str, object]:
    return {
        "model": zoo_model("llama", zoo_directory),
        "params": EngineParams(n_ctx=n_ctx, n_threads=1),
        "open_engine": open_engine(places(tmp_path)),
    }


@pytest.mark.skipif(sys.platform == "win32", reason="kills a process with a signal")
def test_a_killed_engine_is_one_line_and_the_chat_goes_on(play: Play, tmp_path: Path, zoo_directory: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("/params max_tokens=8")
        await stage.say("/skill night-clerk")
        await stage.say("First question")
        stage.composer.write("typed before the crash")
        loaded = stage.app.workbench._desk.loaded
        assert loaded is not None
        engine = loaded.engine
        assert isinstance(engine, ChildEngine)
        assert engine.pid is not None
        before = engine.pid
        os.kill(before, signal.SIGKILL)
        await stage.until(lambda: engine.pid != before)
        assert stage.composer.text == "typed before the crash"
        await stage.pilot.press("enter")
        await stage.idle()
        assert engine.pid not in {None, before}
        assert len(stage.heard(AnswerEnded)) == 2
        assert not stage.heard(Failure)
        assert "typed before the crash" in stage.text
        assert "First question" in stage.text

    play(scene, **real(tmp_path, zoo_directory))


def test_measurements_leave_the_chat_as_it_was(play: Play, tmp_path: Path, zoo_directory: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("/params max_tokens=8")
        await stage.say("/skill night-clerk")
        await stage.say("A question")
        chat = stage.app.session.chat
        assert chat is not None
        await stage.say("/verify")
        (verified,) = stage.heard(ChatVerified)
        assert verified.check.n_positions > 0
        await stage.until(lambda: "This chat against the same chat read afresh" in stage.text)
        stage.app.action_go("chat")
        await stage.pilot.pause()
        await stage.say("/bench")
        (bench,) = stage.heard(BenchDone)
        assert [row.n_skill_tokens > 0 for row in bench.rows] == [True]
        await stage.until(lambda: "× as fast as reading" in stage.text)
        again = stage.app.session.chat
        assert again is not None
        assert (again.id, again.segments) == (chat.id, chat.segments)

    play(scene, **real(tmp_path, zoo_directory))


@pytest.mark.slow
def test_a_skill_is_verified_and_the_verdict_is_shown(play: Play, tmp_path: Path, zoo_directory: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("/verify night-clerk")
        (verified,) = stage.heard(SkillVerified)
        stage.app.action_go("skills")
        await stage.pilot.pause()
        await stage.idle()
        assert f"verified: {'splice' if verified.result.passed else 'read'}" in stage.text

    play(scene, **real(tmp_path, zoo_directory, n_ctx=8192))
