"""What the chat screen promises: messages first, then what is on the screen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from textual import events
from textual.widgets import Input

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.errors import EngineCrashed, EngineError
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.notebook.segment import Freshness, Kind
from kvnotes_local.notebook.store.chats import ChatStore
from kvnotes_local.session.quantities import human_ms
from kvnotes_local.tui.command_list import COMMANDS
from kvnotes_local.tui.last_session import LastSession
from kvnotes_local.tui.news import (
    AnswerEnded,
    AnswerText,
    ChatChanged,
    ChatOpened,
    Failure,
    FieldChanged,
    Notice,
    QuestionAsked,
    SaferOffered,
)
from kvnotes_local.tui.views import ModelRow
from kvnotes_local.tui.widgets.notebook_panel import FieldsTable, NotebookPanel
from kvnotes_local.tui.widgets.transcript import Transcript
from kvnotes_local.tui.widgets.turn import Turn
from kvnotes_local.tui.workbench.crash_watch import SaferSetting
from tests.tui.conftest import Play
from tests.tui.fake_engine import Script
from tests.tui.stage import Stage

MODEL_ROW = ModelRow(Path("/models/tiny.gguf"), "tiny", "given", 1, "fake", "F16", 4096)
SAFER = SaferSetting(Path("/models/tiny.gguf"), EngineParams(), "without fast buffers")


def transcript(stage: Stage) -> Transcript:
    return stage.app.screen.query_one(Transcript)


def last_chat(stage: Stage) -> list[Kind]:
    chat = stage.app.session.chat
    assert chat is not None
    return [segment.kind for segment in chat.segments]


def test_a_question_is_answered_with_its_proof(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("How long is the refund window?")
        assert [one.text for one in stage.heard(QuestionAsked)] == ["How long is the refund window?"]
        assert "".join(one.text for one in stage.heard(AnswerText)) == "It is 30 days."
        (ended,) = stage.heard(AnswerEnded)
        assert not ended.stopped
        assert [segment.kind for segment in ended.chat.segments] == [Kind.SYSTEM, Kind.USER, Kind.ASSISTANT]
        assert "How long is the refund window?" in stage.text
        assert "It is 30 days." in stage.text
        assert f"{ended.proof.prefilled} prefilled" in stage.text
        assert stage.composer.text == ""

    play(scene)


def test_an_answer_appears_while_it_is_given_and_escape_keeps_what_was_said(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.write("Tell me a story")
        stage.script.say("Once", " upon", " a time")
        await stage.until(lambda: "Once upon a time" in stage.text)
        assert "Answering" in stage.text
        stage.composer.write("written meanwhile")
        await stage.pilot.press("escape")
        await stage.idle()
        (ended,) = stage.heard(AnswerEnded)
        assert ended.stopped
        assert ended.chat.segments[-1].text == "Once upon a time"
        assert "(stopped)" in stage.text
        assert stage.composer.text == "written meanwhile"

    play(scene, script=Script(answer=None))


def test_escape_while_the_question_is_read_gives_it_back(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        stage.script.reading.close()
        await stage.write("A question that takes long to read")
        await stage.until(stage.script.reading.reached.is_set)
        await stage.until(lambda: "tokens" in stage.text)
        await stage.pilot.press("escape")
        await stage.idle()
        assert not stage.heard(AnswerEnded)
        assert last_chat(stage) == [Kind.SYSTEM]
        await stage.pilot.press("up")
        assert stage.composer.text == "A question that takes long to read"

    play(scene)


def test_what_cannot_be_answered_is_said_where_it_belongs_and_not_lost(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        stage.script.fail = EngineError("llama.cpp ran out of memory. Use a smaller --n-ctx.")
        await stage.say("Hello?")
        (failure,) = stage.heard(Failure)
        assert "--n-ctx" in failure.message
        assert "Answering failed: llama.cpp ran out of memory." in stage.text
        assert stage.composer.text == "Hello?"
        assert last_chat(stage) == [Kind.SYSTEM]
        assert "Traceback" not in stage.text

    play(scene)


def test_a_second_question_waits_in_the_composer(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.write("First")
        stage.script.say("I")
        await stage.until(lambda: bool(stage.heard(AnswerText)))
        await stage.write("Second")
        await stage.until(lambda: "still under way" in stage.text)
        assert stage.composer.text == "Second"
        stage.script.end()
        await stage.idle()
        assert [one.text for one in stage.heard(QuestionAsked)] == ["First"]

    play(scene, script=Script(answer=None))


WAITS = (
    *("/skill night-clerk", "/read night-clerk", "/drop refund-policy", "/set refund window = 1 day", "/fork", "/undo"),
    *("/redo", "/again", "/new", "/system Be brief.", "/preset balanced", "/params temperature=1", "/model tiny"),
    *("/compile night-clerk", "/verify", "/verify night-clerk", "/bench", "/probe", "/safer"),
)
AT_ONCE = ("/stop", "/export", "/rename Title", "/params", "/level window", "/skills gc", "/help")


def test_every_command_that_has_to_wait_stays_in_the_composer(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # /export writes into the present folder

    async def scene(stage: Stage) -> None:
        await stage.say("A question")
        stage.script.answer = None
        await stage.write("Another one")
        await stage.until(lambda: stage.app.session.answering)
        stage.app.session = replace(stage.app.session, models=(MODEL_ROW,), safer=SAFER)
        n_before = stage.app.workbench.n_submitted
        for line in WAITS:
            await stage.write(line)
            assert stage.composer.text == line
            assert "Answering is still under way; Esc stops it." in stage.app.session.said.text, line
            assert stage.app.screen.MODE == "chat"  # type: ignore[attr-defined]
        assert stage.app.workbench.n_submitted == n_before
        composer = stage.composer
        for line in reversed(AT_ONCE):
            await stage.write(line)
            assert composer.text == "", line
            stage.app.action_go("chat")
            await stage.pilot.pause()
        await stage.idle()

    known = {line.split(" ")[0] for line in (*WAITS, *AT_ONCE)}
    screens = {"/skills", "/chats", "/settings", "/log", "/quit"}
    assert known | screens == {f"/{one.name.split(' ')[0]}" for one in COMMANDS}
    play(scene)


def test_a_command_written_while_an_answer_streams_is_not_lost(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.write("First")
        stage.script.say("I")
        await stage.until(lambda: bool(stage.heard(AnswerText)))
        await stage.write("/undo")
        await stage.until(lambda: "still under way" in stage.text)
        assert stage.composer.text == "/undo"
        stage.script.end()
        await stage.idle()
        assert "still under way" not in stage.text  # it is not any more
        await stage.pilot.press("enter")
        await stage.idle()
        assert last_chat(stage) == [Kind.SYSTEM]
        assert stage.composer.text == ""

    play(scene, script=Script(answer=None))


def test_a_command_that_fails_later_comes_back_unless_something_else_was_written(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("/set colour = red")
        assert "has no field 'colour'" in " ".join(stage.app.session.said.text.split())
        assert stage.composer.text == "/set colour = red"
        stage.script.compiling.close()
        await stage.write("/skill night-clerk")
        await stage.until(stage.script.compiling.reached.is_set)
        assert stage.composer.text == ""
        stage.composer.write("written meanwhile")
        await stage.pilot.press("escape")
        await stage.idle()
        assert stage.composer.text == "written meanwhile"

    play(scene)


def test_reasoning_is_folded_and_code_can_be_copied(play: Play) -> None:
    answer = "<think>Let me see.</think>Here it is:\n\n```python\nprint('hello')\n```\n"

    async def scene(stage: Stage) -> None:
        await stage.say("Code, please")
        assert "Let me see." not in stage.text
        assert "Reasoning, 3 words" in stage.text
        assert "print('hello')" in stage.text
        transcript(stage).turns[-1].focus()
        await stage.pilot.press("o")
        assert stage.app.clipboard == "print('hello')"
        await stage.pilot.press("c")
        assert stage.app.clipboard == "Here it is:\n\n```python\nprint('hello')\n```\n"
        await stage.pilot.press("x")
        await stage.until(lambda: "Let me see." in stage.text)

    play(scene, script=Script(answer=answer))


def test_a_splice_shows_in_the_strip_the_panel_and_the_proof(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("Hello")
        await stage.say("/skill refund-policy")
        (changed,) = [one for one in stage.heard(ChatChanged) if one.what == "splice refund-policy"]
        skill = changed.chat.segments[-1]
        assert [run.freshness for run in skill.runs] == [Freshness.REPAIRED, Freshness.SPLICED]
        n_spliced = skill.runs[1].n_tokens
        assert f"spliced {n_spliced}" in stage.text
        assert "refund window" in stage.text  # the field
        await stage.say("And?")
        assert stage.heard(AnswerEnded)[-1].proof.spliced == n_spliced
        assert f"{n_spliced} spliced · 8 repaired" in stage.text
        await stage.say("/skill refund-policy")
        assert "in the chat already" in stage.text
        await stage.say("/drop refund-policy")
        assert "refund-policy" not in [
            segment.name for segment in stage.app.session.chat.segments if segment.kind is Kind.SKILL
        ]  # type: ignore[union-attr]

    play(scene)


def test_a_skill_goes_before_the_chosen_segment(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("Hello")
        await stage.say("/skill night-clerk before 1")
        assert last_chat(stage) == [Kind.SYSTEM, Kind.SKILL, Kind.USER, Kind.ASSISTANT]
        assert "stale" in stage.text

    play(scene)


def test_a_field_is_changed_in_its_table_and_the_cost_is_shown(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("/skill refund-policy")
        table = stage.app.screen.query_one("#fields-table")
        table.focus()
        await stage.pilot.press("enter")
        field = stage.app.screen.query_one("#field-value", Input)
        assert field.value == "30 days"
        field.value = "45 days"
        await stage.pilot.press("enter")
        await stage.idle()
        (changed,) = stage.heard(FieldChanged)
        assert changed.result.level is EditLevel.FIELD_ERRATUM
        assert stage.app.session.chat.fields == {"refund window": "45 days"}  # type: ignore[union-attr]
        panel = stage.app.screen.query_one(FieldsTable)
        assert f"{changed.result.decoded} computed" in str(panel.query_one("#fields-note").render())
        assert "Correction: refund window" in stage.text
        table.focus()
        await stage.pilot.press("l")
        await stage.until(lambda: "Level (l): window" in stage.text)
        await stage.say("/level erratum")
        await stage.say("/set refund window = 60 days")
        assert stage.heard(FieldChanged)[-1].result.level is EditLevel.ERRATUM

    play(scene)


def test_the_level_of_one_edit_is_chosen_in_the_line_and_in_the_table(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("/skill refund-policy")
        await stage.say("/set refund window = 60 days --level erratum")
        assert stage.heard(FieldChanged)[-1].result.level is EditLevel.ERRATUM
        assert stage.app.session.chat.fields == {"refund window": "60 days"}  # type: ignore[union-attr]
        await stage.say("/set refund window = 61 days --level most")
        assert "There is no edit level 'most'" in stage.app.session.said.text
        assert stage.composer.text == "/set refund window = 61 days --level most"
        stage.composer.write("/set refund window = 61 days --level f")
        await stage.until(lambda: "for this edit only" in stage.text)
        await stage.pilot.press("tab")
        assert stage.composer.text == "/set refund window = 61 days --level field"
        stage.composer.write("")

        stage.app.screen.query_one("#fields-table").focus()
        await stage.pilot.press("enter")
        field = stage.app.screen.query_one("#field-value", Input)
        assert "field+erratum (^L)" in stage.text
        await stage.pilot.press("ctrl+l")
        assert "window (^L)" in stage.text
        field.value = "62 days"
        await stage.pilot.press("enter")
        await stage.idle()
        assert stage.heard(FieldChanged)[-1].result.level is EditLevel.WINDOW
        assert stage.app.settings.edit_level is EditLevel.FIELD_ERRATUM  # the next edit goes as far as ever

    play(scene)


def test_undo_and_redo(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("One")
        await stage.say("/undo")
        assert last_chat(stage) == [Kind.SYSTEM]
        assert "One" not in stage.text
        await stage.say("/redo")
        assert last_chat(stage) == [Kind.SYSTEM, Kind.USER, Kind.ASSISTANT]
        await stage.pilot.press("alt+z")
        await stage.idle()
        await stage.pilot.press("alt+z")
        await stage.idle()
        assert "nothing to undo" in stage.text

    play(scene)


def test_each_message_can_be_asked_again_edited_forked_and_deleted(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("First question")
        stage.script.answer = "Another answer."
        transcript(stage).turns[-1].focus()
        await stage.pilot.press("r")
        await stage.idle()
        assert stage.app.session.chat.segments[-1].text == "Another answer."  # type: ignore[union-attr]

        next(turn for turn in transcript(stage).turns if turn.content.kind is Kind.USER).focus()
        await stage.pilot.press("e")
        assert stage.composer.text == "First question"
        stage.composer.area.load_text("Edited question")
        await stage.pilot.press("enter")
        await stage.idle()
        assert [segment.text for segment in stage.app.session.chat.segments[1:]] == [
            "Edited question",
            "Another answer.",
        ]  # type: ignore[union-attr]

        before = stage.app.session.chat.id  # type: ignore[union-attr]
        next(turn for turn in transcript(stage).turns if turn.content.kind is Kind.USER).focus()
        await stage.pilot.press("f")
        await stage.idle()
        assert stage.heard(ChatOpened)[-1].chat.id != before
        assert last_chat(stage) == [Kind.SYSTEM, Kind.USER]
        transcript(stage).turns[-1].focus()
        await stage.pilot.press("d")
        await stage.idle()
        assert last_chat(stage) == [Kind.SYSTEM]
        await stage.say("/undo")
        assert last_chat(stage) == [Kind.SYSTEM, Kind.USER]

    play(scene)


def test_editing_can_be_left_with_escape(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("A question")
        next(turn for turn in transcript(stage).turns if turn.content.kind is Kind.USER).focus()
        await stage.pilot.press("e")
        assert "Editing an earlier question" in stage.text
        await stage.pilot.press("escape")
        assert stage.composer.text == ""
        assert stage.composer.editing is None

    play(scene)


def test_keys_that_come_in_a_burst_do_what_they_do_one_by_one(play: Play) -> None:
    """As when the terminal or the program was held up for a moment: nothing overtakes anything."""

    async def scene(stage: Stage) -> None:
        await burst(stage, *"wrong", *["backspace"] * 5, *"right", "ctrl+j", *"two", "left", "delete", "home", *"x")
        assert stage.composer.text == "right\nxtw"
        stage.composer.write("")
        await burst(stage, *"First", "enter", *"second")
        await stage.idle()
        assert [one.text for one in stage.heard(QuestionAsked)] == ["First"]
        assert stage.composer.text == "second"
        await burst(stage, "enter", *"third", "up", *"!", "down", *"?")
        await stage.idle()
        assert [one.text for one in stage.heard(QuestionAsked)] == ["First", "second"]
        assert stage.composer.text == "third?"
        stage.composer.write("")
        await burst(stage, *"/unknown", "enter", *" more")
        assert stage.composer.text == "/unknown more"  # refused, so it comes back, in front of what was written since
        stage.composer.write("")
        await burst(stage, *"/ski", "tab", *" refund-policy", "enter")
        assert stage.composer.text == ""

    play(scene)


async def burst(stage: Stage, *keys: str) -> None:
    for key in keys:
        character = key if len(key) == 1 else None
        stage.app.post_message(events.Key(key, character))
    await stage.pilot.pause()


def test_several_lines_history_and_completion(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.pilot.press("a", "ctrl+j", "b")
        assert stage.composer.text == "a\nb"
        await stage.pilot.press("enter")
        await stage.idle()
        assert stage.heard(QuestionAsked)[0].text == "a\nb"
        stage.app.post_message(events.Paste("pasted\nin two lines"))
        await stage.pilot.pause()
        assert stage.composer.text == "pasted\nin two lines"
        assert len(stage.heard(QuestionAsked)) == 1
        stage.composer.write("")
        await stage.pilot.press("x", "home", "up")
        assert stage.composer.text == "a\nb"
        await stage.pilot.press("down")
        assert stage.composer.text == "x"
        stage.composer.write("/ski")
        await stage.until(lambda: "splice a skill into the chat" in stage.text)
        await stage.pilot.press("tab")
        await stage.until(lambda: "How to be a clerk." in stage.text)
        await stage.pilot.press("down", "tab")
        assert stage.composer.text == "/skill refund-policy"
        await stage.pilot.press("enter")
        await stage.idle()
        assert last_chat(stage)[-1] is Kind.SKILL
        stage.composer.write("/set ")
        await stage.until(lambda: "now 30 days" in stage.text)

    play(scene)


def test_unknown_commands_and_missing_arguments_are_explained(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        for line, expected in (
            ("/sk", "Did you mean /skill?"),
            ("/bogus", "/help lists what there is"),
            ("/skill", "/skill NAME [before SEGMENT]"),
            ("/set nonsense", "is not NAME = VALUE"),
            ("/set colour = red", "has no field 'colour'"),
            ("/skill refund", "did you mean refund-policy?"),
            ("/level all", "There is no edit level 'all'"),
            ("/preset wild", "There is no preset 'wild'"),
            ("/params heat=3", "There is no parameter 'heat'"),
            ("/params temperature=hot", "has to be a number"),
            ("/model nothing", "There is no model 'nothing'"),
            ("/drop nothing", "has no skill 'nothing'"),
            ("/fork here", "is no number of a segment"),
            ("/skill a b c", "is not NAME or NAME before SEGMENT"),
        ):
            await stage.say(line)
            assert expected in " ".join(stage.app.session.said.text.split()), line
            assert stage.app.session.said.failed
            stage.composer.write("")

    play(scene)


def test_sampling_is_kept_with_the_chat_and_used(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("/params temperature=0.5 max_tokens=77")
        await stage.say("Hello")
        assert stage.script.calls[-1] == "generate temperature=0.5 max_tokens=77"
        await stage.say("/preset balanced")
        await stage.say("Hello again")
        assert stage.script.calls[-1] == "generate temperature=0.7 max_tokens=77"
        await stage.say("/params")
        assert "temperature = 0.7" in stage.text

    play(scene)


def test_a_chat_begins_with_a_system_text_and_is_given_another_one(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("/new You are a pirate.")
        assert stage.app.session.chat.segments[0].text == "You are a pirate."  # type: ignore[union-attr]
        await stage.say("/skill refund-policy")
        await stage.say("Hello")
        before = stage.app.session.chat
        await stage.say("/system You are a monk.")
        chat = stage.app.session.chat
        assert (chat.id, chat.segments[0].text) == (before.id, "You are a monk.")  # type: ignore[union-attr]
        assert chat.segments[1:] == before.segments[1:]  # type: ignore[union-attr]
        n_spliced = chat.segments[1].runs[1].n_tokens  # type: ignore[union-attr]
        assert f"{n_spliced:,} tokens spliced again" in " ".join(stage.app.session.said.text.split())
        assert "stale" not in stage.text
        await stage.say("/system")
        assert stage.composer.text == "/system You are a monk."
        await stage.say("/undo")
        assert stage.app.session.chat.segments == before.segments  # type: ignore[union-attr]
        await stage.say("/new")
        assert stage.app.session.chat.segments[0].text == "You are a helpful assistant."  # type: ignore[union-attr]

    play(scene)


def test_the_panel_is_put_away_on_small_screens_and_resizing_keeps_the_text(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        assert not stage.app.screen.query_one(NotebookPanel).display
        stage.composer.write("half a question")
        await stage.pilot.press("ctrl+b")
        assert stage.app.screen.query_one(NotebookPanel).display
        await stage.pilot.press("ctrl+b")
        await stage.pilot.resize_terminal(200, 50)
        assert stage.composer.text == "half a question"
        await stage.pilot.resize_terminal(60, 20)
        assert stage.composer.text == "half a question"
        assert "half a question" in stage.text
        stage.app.action_go("help")
        await stage.pilot.pause()
        await stage.pilot.press("f2")
        assert stage.composer.text == "half a question"

    play(scene, size=(80, 24))


def test_text_from_the_model_cannot_control_the_terminal(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("Say something \x1b]0;owned\x07 evil [bold]and[/bold] more [/]")
        assert "\x1b" not in stage.text
        assert "[bold]and[/bold] more [/]" in stage.text
        assert "[red]no markup[/]" in stage.text

    play(scene, script=Script(answer="\x1b[31mred\x1b[0m [red]no markup[/] \u202eevil"))


def test_segments_of_the_panel_lead_to_the_transcript_and_can_be_removed(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("One")
        await stage.say("/skill night-clerk")
        segments = stage.app.screen.query_one("#segments")
        segments.focus()
        await stage.pilot.press("end", "enter")
        assert isinstance(stage.app.focused, Turn)
        assert stage.app.focused.index == 3
        segments.focus()
        await stage.pilot.press("i")
        assert stage.composer.text == "/skill  before 3"
        stage.composer.write("")
        segments.focus()
        await stage.pilot.press("home", "d")
        await stage.until(lambda: "system text cannot be deleted" in stage.text)
        segments.focus()
        await stage.pilot.press("end", "d")
        await stage.idle()
        assert Kind.SKILL not in last_chat(stage)

    play(scene)


def crash() -> EngineCrashed:
    return EngineCrashed("The engine process ended with SIGSEGV while reading.", operation="apply", again=True)


def test_after_the_second_crash_in_one_work_a_safer_setting_is_one_key_away(play: Play, tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("A question")
        stage.script.fail = crash()
        await stage.say("Another one")  # only once: the chat is put together again
        assert stage.app.session.safer is None
        await stage.pilot.press("f9")
        assert "nothing safer to try" in stage.text
        before = stage.app.session.chat

        stage.script.n_fails = 2
        await stage.say("A third one")
        (offered,) = stage.heard(SaferOffered)
        assert not offered.setting.params.extra_buffers
        assert "The engine died twice. F9 restarts it without fast buffers." in stage.text
        assert stage.composer.text == "A third one"
        assert "Another one" in stage.text
        assert stage.app.session.chat == before
        stage.composer.write("")
        await stage.say(f"/export {tmp_path / 'chat.md'}")
        assert "Another one" in (tmp_path / "chat.md").read_text()

        stage.composer.write("typed meanwhile")
        await stage.pilot.press("f9")
        await stage.idle()
        assert [one.params.extra_buffers for one in stage.script.opened] == [True, False]  # and the next start, too:
        assert not LastSession.load(tmp_path / "data").params.extra_buffers
        assert stage.app.session.chat.segments == before.segments  # type: ignore[union-attr]
        assert "The engine died twice" not in stage.text
        assert stage.composer.text == "typed meanwhile"

    play(scene)


def test_what_is_offered_grows_safer_and_never_too_small_for_the_chat(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("A question")
        seen = []
        for _ in range(3):
            stage.script.fail, stage.script.n_fails = crash(), 2
            await stage.say("Another one")
            if stage.app.session.safer is None:
                break
            seen.append(stage.app.session.safer.change)
            await stage.pilot.press("f9")
            await stage.idle()
        assert seen[0] == "without fast buffers"
        assert seen[-1].endswith("with a context of 2,048 tokens")
        assert stage.app.session.info.n_ctx == 2048  # type: ignore[union-attr]
        assert stage.app.session.safer is None  # nothing is left

    play(scene, params=EngineParams(n_gpu_layers=0))


def test_a_model_that_crashes_twice_while_it_loads_is_offered_more_safely(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        assert stage.app.session.safer is None
        stage.composer.write("typed before")
        stage.app.start_model()
        await stage.idle()
        assert "F9 restarts it without fast buffers" in stage.text
        stage.script.load_error = None
        await stage.pilot.press("f9")
        await stage.idle()
        assert not stage.script.opened[0].params.extra_buffers
        assert stage.composer.text == "typed before"

    script = Script(load_error=EngineCrashed("The engine process ended with SIGBUS while loading the model."))
    play(scene, script=script)


def test_full_recompute_is_estimated_from_what_was_measured_at_another_time(play: Play, tmp_path: Path) -> None:
    async def short(stage: Stage) -> None:
        await stage.say("Hi")
        assert "prefilled" in stage.text
        assert "full recompute" not in stage.text  # a few tokens tell nothing

    n_compiled = []

    async def long(stage: Stage) -> None:
        await stage.say("/skill refund-policy")
        n_compiled.append(stage.app.session.chat.segments[-1].n_tokens)  # type: ignore[union-attr]

    async def short_again(stage: Stage) -> None:
        await stage.say("/new")
        await stage.say("Hi")
        proof = stage.heard(AnswerEnded)[-1].proof
        expected = (
            1e3 * (proof.prefilled + proof.reused) / n_compiled[0]
        )  # the engine of the tests compiles for a second
        assert proof.recompute_ms == pytest.approx(expected)
        assert f"full recompute ≈ {human_ms(expected)}" in stage.text

    play(short)
    play(long)
    play(short_again)


def test_stopping_says_so_in_the_stored_chat(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.write("Go on")
        stage.script.say("Some", " words")
        await stage.until(lambda: "Some words" in stage.text)
        await stage.pilot.press("escape")
        await stage.idle()
        assert not [one for one in stage.heard(Notice) if "fail" in one.text]
        store = ChatStore(stage.app.start.places.chats)
        stored = store.load(stage.app.session.chat.id)  # type: ignore[union-attr]
        store.close()
        assert stored.segments[-1].stopped

    play(scene, script=Script(answer=None))
