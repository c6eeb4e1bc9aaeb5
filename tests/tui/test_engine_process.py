"""The screens with the real engine in its process, on a tiny model."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from kvnotes_local.contract.generation import Generation, Sampling, TokenEvent
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.contract.protocol import LoadProgress
from kvnotes_local.engine.process.child_engine import ChildEngine
from kvnotes_local.notebook.segment import Freshness
from kvnotes_local.session.opening import opener
from kvnotes_local.tui.news import AnswerEnded, BenchDone, ChatVerified, Failure, SkillVerified
from kvnotes_local.tui.workbench.evaluation_requests import BENCH_LENGTHS
from tests.tui.conftest import Play
from tests.tui.stage import Stage, places
from tests.zoo import zoo_model


def real(tmp_path: Path, zoo_directory: Path, n_ctx: int = 1024) -> dict[str, object]:
    return {
        "model": zoo_model("llama", zoo_directory),
        "params": EngineParams(n_ctx=n_ctx, n_threads=1),
        "open_engine": opener(places(tmp_path), isolate=True),
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


@pytest.mark.skipif(sys.platform == "win32", reason="kills a process with a signal")
def test_an_engine_killed_twice_in_an_answer_is_restarted_more_safely(
    play: Play, tmp_path: Path, zoo_directory: Path
) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("/params max_tokens=40")
        await stage.say("/skill night-clerk")
        await stage.say("Go on for long")
        assert not list(bullets.iterdir())
        (failure,) = stage.heard(Failure)
        assert "SIGKILL" in failure.message
        assert "F9 restarts it" in stage.text
        chat = stage.app.session.chat
        assert chat is not None
        said = chat.segments[-1]
        assert said.stopped
        assert len(said.text) > 0
        await stage.say(f"/export {tmp_path / 'chat.md'}")
        assert "Go on for long" in (tmp_path / "chat.md").read_text()
        stage.composer.write("typed before the restart")
        await stage.pilot.press("f9")
        await stage.idle()
        again = stage.app.session.chat
        assert again is not None
        assert (again.id, again.segments[-1].text) == (chat.id, said.text)
        assert stage.app.session.safer is None
        assert stage.composer.text == "typed before the restart"
        await stage.say("/params max_tokens=4")
        await stage.say("And?")
        assert len(stage.heard(AnswerEnded)) == 1

    bullets = tmp_path / "bullets"
    bullets.mkdir()
    program = [sys.executable, "-m", "tests.faults.faulty_child", "decode", "SIGKILL", str(bullets)]

    class Doomed(ChildEngine):
        """Dies twice from the second token of its first answer on."""

        def generate(self, seq: int, sampling: Sampling, max_tokens: int) -> Generation:
            generation = super().generate(seq, sampling, max_tokens)
            if max_tokens == 40:
                generation.events = shooting(generation.events)
            return generation

    def shooting(events: Iterator[TokenEvent]) -> Generator[TokenEvent, None, None]:
        yield next(events)
        for number in range(2):
            (bullets / str(number)).touch()
        yield from events

    def open_faulty(path: Path, params: EngineParams, *, progress: LoadProgress, note: object) -> ChildEngine:
        return Doomed(path, params, cache_dir=tmp_path / "cache", progress=progress, program=program)

    play(scene, **real(tmp_path, zoo_directory) | {"open_engine": open_faulty})


def test_a_skill_goes_out_as_a_file_and_comes_back_checked(play: Play, tmp_path: Path, zoo_directory: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("/compile night-clerk")
        assert "night-clerk: " in stage.app.session.said.text  # though the screen of the skills has not been opened yet
        archive = tmp_path / "night-clerk.kvnotes.zip"
        await stage.say(f"/skills export night-clerk {archive}")
        assert archive.is_file()
        await stage.say("/skills remove all")
        await stage.say(f"/skills import {archive}")
        assert "checked when it is first spliced" in " ".join(stage.app.session.said.text.split())
        await stage.say("/skill night-clerk")
        chat = stage.app.session.chat
        assert chat is not None
        assert chat.segments[-1].freshness is Freshness.SPLICED
        assert not stage.heard(Failure)

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
        (row,) = bench.rows  # the context has room for a skill of the shortest length only
        assert abs(row.n_skill_tokens - BENCH_LENGTHS[0]) < 0.1 * BENCH_LENGTHS[0]
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
        # Said where it was asked for, though the screen of the skills has not been opened yet.
        assert (
            "may be spliced" if verified.result.passed else "read instead of spliced"
        ) in stage.app.session.said.text
        stage.app.action_go("skills")
        await stage.pilot.pause()
        await stage.idle()
        assert f"verified: {'splice' if verified.result.passed else 'read'}" in stage.text

    play(scene, **real(tmp_path, zoo_directory, n_ctx=8192))
