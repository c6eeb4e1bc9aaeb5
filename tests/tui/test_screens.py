"""What the other screens promise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from textual.widgets import DataTable, Input, Select

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.sequences.state_shelf import ShelvedState, StateShelf, states_directory
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.notebook.segment import Freshness, Kind, Run, Segment
from kvnotes_local.notebook.store.chats import ChatStore
from kvnotes_local.notebook.store.params import ChatParams
from kvnotes_local.tui.command_list import COMMANDS
from kvnotes_local.tui.news import (
    ChatOpened,
    ChatRemoved,
    ChatsListed,
    MemoryEstimated,
    ModelReady,
    SkillCompiled,
    SkillsListed,
    WorkProgressed,
)
from kvnotes_local.tui.palette import KvnotesCommands
from kvnotes_local.tui.screens.chats import ChatsScreen
from kvnotes_local.tui.screens.skills import SkillsScreen
from kvnotes_local.tui.workbench.store_requests import PutChatBack, RemoveChat, RemoveOpenChat
from tests.tui.conftest import Play
from tests.tui.stage import Stage
from tests.zoo import zoo_model


async def go(stage: Stage, mode: str) -> None:
    stage.app.action_go(mode)
    await stage.pilot.pause()
    await stage.idle()


def test_every_screen_has_a_key_and_can_be_clicked(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        for key, mode in (
            ("f3", "skills"),
            ("f4", "chats"),
            ("f5", "models"),
            ("f7", "settings"),
            ("f8", "log"),
            ("f1", "help"),
        ):
            await stage.pilot.press(key)
            await stage.idle()
            assert mode == stage.app.screen.MODE  # type: ignore[attr-defined]
        await stage.pilot.click("#nav", offset=(12, 0))
        await stage.idle()
        assert stage.app.screen.MODE == "skills"  # type: ignore[attr-defined]

    play(scene)


def test_skills_are_compiled_with_progress_and_spliced(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await go(stage, "skills")
        assert [one.status("fake-Tiny-1B") for one in stage.heard(SkillsListed)[-1].skills] == ["not compiled"] * 2
        assert "How to be a clerk." in stage.text
        await stage.pilot.press("down")
        assert "The refund window is 30 days." in stage.text
        assert "Fields: refund window = 30 days" in stage.text
        stage.script.compiling.close()
        await stage.pilot.press("c")
        await stage.until(lambda: bool(stage.heard(WorkProgressed)))
        await stage.until(lambda: "Compiling refund-policy: " in stage.text and " tokens " in stage.text)
        stage.script.compiling.open()
        await stage.idle()
        await stage.idle()
        assert stage.heard(SkillCompiled)[0].skill == "refund-policy"
        assert [one.status("fake-Tiny-1B") for one in stage.app.session.skills] == ["not compiled", "compiled"]
        assert "compiled" in stage.text
        await stage.pilot.press("s")
        await stage.idle()
        assert stage.app.session.chat.skills == ("refund-policy",)  # type: ignore[union-attr]

    play(scene)


def test_compiling_is_stopped_with_escape(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await go(stage, "skills")
        stage.script.compiling.close()
        await stage.pilot.press("c")
        await stage.until(stage.script.compiling.reached.is_set)
        await stage.pilot.press("escape")
        await stage.idle()
        assert "cancel" in stage.script.calls
        assert not stage.heard(SkillCompiled)
        assert stage.app.session.work is None

    play(scene)


def test_a_broken_or_changed_skill_says_so(play: Play, tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await go(stage, "skills")
        await stage.pilot.press("c")
        await stage.idle()
        file = tmp_path / "skills" / "night-clerk" / "SKILL.md"
        file.write_text(file.read_text() + "\nAs I said above, be kind today.\n")
        await stage.pilot.press("ctrl+r")
        await stage.idle()
        assert "out of date" in stage.text
        assert "depends on the date" in stage.text
        assert isinstance(stage.app.screen, SkillsScreen)

    play(scene)


def test_chats_are_listed_searched_renamed_exported_deleted_and_put_back(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a long path would break the line of the message that is looked for

    async def scene(stage: Stage) -> None:
        await stage.say("Where is the lighthouse?")
        await stage.say("/fork")
        await stage.say("/new")
        await stage.say("A question about bread")
        await go(stage, "chats")
        screen = stage.app.screen
        assert isinstance(screen, ChatsScreen)
        assert "└ Where is the lighthouse?" in stage.text
        assert "▸ A question about bread" in stage.text
        assert len(stage.heard(ChatsListed)[-1].chats) == 3

        await stage.pilot.press("slash", *"bread", "enter")
        await stage.idle()
        assert [one.title for one in stage.heard(ChatsListed)[-1].chats] == ["A question about bread"]
        assert "found: " in stage.text
        screen.query_one("#chats-search", Input).value = ""
        await stage.idle()

        await stage.pilot.press("r")
        screen.query_one("#chats-input", Input).value = "Loaves"
        await stage.pilot.press("enter")
        await stage.idle()
        assert "Loaves" in stage.text

        await stage.pilot.press("e")
        to = Path("chat.md")
        screen.query_one("#chats-input", Input).value = str(to)
        await stage.pilot.press("enter")
        await stage.idle()
        assert "A question about bread" in to.read_text()
        await stage.pilot.press("e")
        screen.query_one("#chats-input", Input).value = str(to)
        await stage.pilot.press("enter")
        await stage.idle()
        assert "exists already" in stage.text

        await stage.pilot.press("down", "d")
        await stage.idle()
        assert "was deleted; u brings it back" in stage.text
        assert len(stage.heard(ChatsListed)[-1].chats) == 2
        await stage.pilot.press("u")
        await stage.idle()
        assert len(stage.heard(ChatsListed)[-1].chats) == 3

        await stage.pilot.press("home", "d")  # the open one
        await stage.idle()
        assert len(stage.heard(ChatsListed)[-1].chats) == 2
        assert [segment.kind for segment in stage.app.session.chat.segments] == [Kind.SYSTEM]  # type: ignore[union-attr]

    play(scene)


def test_chats_that_descend_from_each_other_are_all_shown(play: Play, tmp_path: Path) -> None:
    """No program writes such a circle, but a damaged file may hold one."""
    store = ChatStore(tmp_path / "data" / "chats.sqlite")
    user = Segment(Kind.USER, (1,), "hello", content_stop=1, runs=(Run(1, Freshness.FRESH),))
    parents = {"0badcafe": "1badcafe", "1badcafe": "0badcafe", "2badcafe": "0badcafe", "3badcafe": None}
    for chat in parents:
        store.save(chat, [user], "say", new=("model", "f" * 64, ChatParams()))
    for chat, parent in parents.items():
        store._db.execute("UPDATE chats SET parent = ? WHERE id = ?", (parent, chat))
    store.close()

    async def scene(stage: Stage) -> None:
        await go(stage, "chats")
        await stage.idle()
        assert stage.app.screen.query_one(DataTable).row_count == len(parents)

    play(scene, ready=False, model=None)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_deleted_chat_takes_its_saved_state_back_or_leaves_none(play: Play, is_open: bool) -> None:
    """It can be put back until the screens are left."""
    kept: list[Path] = []

    async def scene(stage: Stage) -> None:
        await stage.say("Nobody shall know this")
        chat = stage.app.session.chat
        assert chat is not None
        places = stage.app.start.places
        save = states_directory(places.cache)
        shelf = StateShelf(lambda path, tokens, blob: path.write_bytes(blob), lambda path: ((), memoryview(b"")), save)
        if not is_open:
            await stage.say("/new")
        assert shelf.keep(chat.id, ShelvedState((1,), memoryview(b"state"))).kept
        (state,) = save.iterdir()
        kept.append(save)
        stage.app.submit((RemoveOpenChat if is_open else RemoveChat)(chat.id))
        await stage.idle()
        assert chat.id not in [one.id for one in stage.heard(ChatsListed)[-1].chats]
        assert not state.exists()
        stage.app.submit(PutChatBack(stage.heard(ChatRemoved)[-1].chat))
        await stage.idle()
        assert chat.id in [one.id for one in stage.heard(ChatsListed)[-1].chats]
        assert state.exists()
        stage.app.submit(RemoveChat(chat.id))
        await stage.idle()

    play(scene)
    (save,) = kept
    assert not list(save.iterdir())


def test_a_stored_chat_is_gone_on_with(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.say("First chat")
        first = stage.app.session.chat.id  # type: ignore[union-attr]
        await stage.say("/new")
        await stage.say("Second chat")
        await go(stage, "chats")
        await stage.pilot.press("down", "enter")
        await stage.idle()
        opened = stage.heard(ChatOpened)[-1]
        assert opened.chat.id == first
        assert opened.restored
        assert "First chat" in stage.text

    play(scene)


def test_models_are_estimated_loaded_and_unloaded(play: Play, zoo_directory: Path) -> None:
    file = zoo_model("llama", zoo_directory)

    async def scene(stage: Stage) -> None:
        await go(stage, "models")
        row = next(n for n, one in enumerate(stage.app.session.models or ()) if one.path == file)
        stage.app.screen.query_one("#models", DataTable).move_cursor(row=row)
        await stage.idle()
        assert stage.heard(MemoryEstimated)[-1].path == file
        assert "KV cache" in stage.text
        small = stage.heard(MemoryEstimated)[-1].estimate
        stage.app.screen.query_one("#n-ctx", Input).value = "1024"
        await stage.idle()
        assert stage.heard(MemoryEstimated)[-1].estimate != small
        stage.app.screen.query_one("#n-ctx", Input).value = "100000000000"
        await stage.until(lambda: "no number" in stage.text)
        stage.app.screen.query_one("#n-ctx", Input).value = "1024"
        stage.app.screen.query_one("#kv-type", Select).value = stage.app.screen.query_one("#kv-type", Select)._options[
            3
        ][1]
        stage.app.screen.query_one("#models").focus()
        stage.script.loading.close()
        await stage.pilot.press("l")
        await stage.until(lambda: f"Loading {file.stem}: 50%" in stage.text)
        stage.script.loading.open()
        await stage.idle()
        info = stage.heard(ModelReady)[-1].info
        assert (info.path, info.n_ctx, info.type_k) == (file, 1024, GGMLType.Q8_0)
        assert stage.script.opened[0].closed
        assert "Class splice" in stage.text
        await stage.pilot.press("u")
        await stage.idle()
        assert stage.app.session.info is None
        assert "No model is loaded" in stage.text

    play(scene, models=(file,))


def test_loading_can_be_stopped_and_failures_are_explained(play: Play) -> None:
    script_path = Path("/models/broken.gguf")

    async def scene(stage: Stage) -> None:
        assert "could not load broken.gguf. Check that the file is complete." in " ".join(stage.text.split())
        assert stage.app.session.info is None
        await stage.say("Hello?")
        assert "No model is loaded" in stage.text
        assert stage.composer.text == "Hello?"

    play(scene, model=script_path)


def test_the_embedded_model_is_offered_with_one_key(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        assert "Start with Small-1B (Enter)" in stage.text
        await stage.pilot.press("enter")
        await stage.idle()
        assert stage.heard(ModelReady)[0].info.name == "Small-1B"
        assert "/skill refund-policy" in stage.text

    play(scene, model=None, embedded=Path("/models/Small-1B.gguf"))


def test_settings_are_written_where_they_belong(play: Play, tmp_path: Path) -> None:
    file = tmp_path / "config" / "settings.toml"
    file.parent.mkdir()
    file.write_text(
        '# mine\ntheme = "nord" # cold\n\n[presets.exact]\ntemperature = 0.0\n\n[keys]\n"chat.new" = "ctrl+t"\n'
    )

    async def scene(stage: Stage) -> None:
        assert stage.app.theme == "nord"
        before = stage.app.session.chat.id  # type: ignore[union-attr]
        await stage.pilot.press("ctrl+t")
        await stage.idle()
        assert stage.app.session.chat.id != before  # type: ignore[union-attr]
        await go(stage, "settings")
        stage.app.screen.query_one("#theme", Select).value = "kvnotes-day"
        await stage.pilot.pause()
        assert stage.app.theme == "kvnotes-day"
        stage.app.screen.query_one("#sampling-temperature", Input).focus()
        stage.app.screen.query_one("#sampling-temperature", Input).value = "0.3"
        await stage.pilot.press("enter")
        await go(stage, "chat")
        await stage.say("/new")
        await stage.say("Hello")
        assert stage.script.calls[-1].startswith("generate temperature=0.3")

    play(scene)
    text = file.read_text()
    assert text.startswith('# mine\ntheme = "kvnotes-day" # cold\n')
    assert "temperature = 0.3" in text
    assert '"chat.new" = "ctrl+t"' in text


def test_keys_are_bound_otherwise_on_the_settings_screen(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await go(stage, "settings")
        table = stage.app.screen.query_one("#keys-table", DataTable)
        table.focus()
        rows = [str(table.get_row_at(n)[2]) for n in range(table.row_count)]
        table.move_cursor(row=rows.index("go.skills"))
        await stage.pilot.press("enter")
        stage.app.screen.query_one("#key-input", Input).value = "f9"
        await stage.pilot.press("enter")
        await stage.pilot.pause()
        await stage.pilot.press("f9")
        assert stage.app.screen.MODE == "skills"  # type: ignore[attr-defined]
        await go(stage, "help")
        assert "f9" in stage.text

    play(scene, size=(120, 100))


def test_what_the_settings_say_wrong_is_told_with_the_nearest_name(play: Play, tmp_path: Path) -> None:
    file = tmp_path / "config" / "settings.toml"
    file.parent.mkdir()
    file.write_text('themee = "nord"\nedit_level = "feild"\n[keys]\n"chat.nwe" = "ctrl+t"\n')

    async def scene(stage: Stage) -> None:
        said = stage.app.session.said
        del said
        text = " ".join(stage.app.settings_problems)
        assert "themee is not understood; did you mean theme?" in text
        assert "edit_level is not understood; did you mean field?" in text
        assert "keys.chat.nwe names nothing" in text

    play(scene)


def test_help_lists_signs_commands_and_keys(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await go(stage, "help")
        for expected in (
            "spliced",
            "taken from a compiled skill",
            "/skill NAME",
            "/export",
            "composer.new_line",
            "turn.copy",
        ):
            assert expected in stage.text

    play(scene, size=(120, 120))


def test_the_logs_are_shown(play: Play, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "llama.log").write_text("llama_context: n_ctx = 4096\n\x1b[31mred\n")

    async def scene(stage: Stage) -> None:
        await go(stage, "log")
        assert "Nothing was logged yet." in stage.text
        await stage.pilot.press("o")
        await stage.idle()
        assert "llama_context: n_ctx = 4096" in stage.text
        assert "\x1b" not in stage.text

    play(scene)


def test_the_palette_has_every_command_and_skill(play: Play) -> None:
    async def scene(stage: Stage) -> None:
        await stage.pilot.press("ctrl+p")
        await stage.pilot.press(*"splice night")
        await stage.until(lambda: "Splice night-clerk" in stage.text)
        await stage.pilot.press("enter")
        await stage.pilot.press("enter")
        await stage.until(lambda: stage.app.session.chat.skills == ("night-clerk",))  # type: ignore[union-attr]
        await stage.say("/skill refund-policy")
        await stage.pilot.press("ctrl+p")
        await stage.pilot.pause()
        stage.app.screen.query_one(Input).value = "set refund level erratum"
        await stage.until(lambda: "Set refund window, level erratum" in stage.text)
        await stage.pilot.press("enter")
        await stage.until(lambda: stage.app.screen.MODE == "chat")  # type: ignore[attr-defined]
        assert stage.composer.text == "/set refund window =  --level erratum"
        stage.composer.area.insert("7 days")
        assert stage.composer.text == "/set refund window = 7 days --level erratum"
        commands = [hit.text async for hit in KvnotesCommands(stage.app.screen).discover()]
        assert {f"/{one.name} {one.usage}".rstrip() for one in COMMANDS} <= set(commands)

    play(scene)


def test_skills_are_begun_shared_and_cleared_away(play: Play, tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await go(stage, "skills")
        await stage.pilot.press("n")
        await stage.pilot.pause()
        assert stage.composer.text == "/skills new "
        await stage.say("/skills new shop-rules like refund-policy")
        assert (tmp_path / "skills" / "shop-rules" / "SKILL.md").is_file()
        assert [one.name for one in stage.app.session.skills] == ["night-clerk", "refund-policy", "shop-rules"]
        await stage.say("/skills new Shop Rules")
        assert "is not NAME or NAME like SKILL" in stage.app.session.said.text
        stage.composer.write("")

        await stage.say("/skills export shop-rules")
        assert "Compile it first" in " ".join(stage.app.session.said.text.split())
        stage.composer.write("")
        await stage.say("/compile shop-rules")
        await stage.say("/skills export shop-rules")
        assert "one whole state" in stage.app.session.said.text  # as the engine of the tests makes them
        assert stage.composer.text == "/skills export shop-rules"
        stage.composer.write("")

        await go(stage, "skills")
        await stage.pilot.press("down", "down", "x")
        await stage.idle()
        await stage.idle()
        assert "Deleted 1 artifact" in stage.app.session.said.text
        assert [one.status("fake-Tiny-1B") for one in stage.app.session.skills] == ["not compiled"] * 3
        await stage.pilot.press("g")
        await stage.idle()
        assert "Deleted 0 files" in stage.app.session.said.text
        await stage.pilot.press("i")
        await stage.pilot.pause()
        assert stage.composer.text == "/skills import "
        await stage.say(f"/skills import {tmp_path / 'skills' / 'shop-rules' / 'SKILL.md'}")
        assert "Importing a skill failed" in stage.app.session.said.text
        assert stage.composer.text.startswith("/skills import ")
        await stage.say("/skills gc nonsense")
        assert "neither a size as 2G nor an age as 30d" in stage.app.session.said.text
        stage.composer.write("/skills ")
        await stage.until(lambda: "begin a skill of your own" in stage.text)

    play(scene)


def test_leaving_while_it_works_asks_once_and_the_next_start_goes_on_without_reading(
    play: Play, tmp_path: Path
) -> None:
    async def first(stage: Stage) -> None:
        await stage.write("Tell me all")
        stage.script.say("Well", " then")
        await stage.until(lambda: "Well then" in stage.text)
        await stage.pilot.press("ctrl+q")
        await stage.until(lambda: "What was said so far is kept" in stage.text)
        await stage.pilot.press("escape")
        await stage.until(lambda: "What was said so far is kept" not in stage.text)
        assert stage.app.session.work is not None
        stage.composer.write("my draft")
        await stage.pilot.press("ctrl+q")
        await stage.until(lambda: "What was said so far is kept" in stage.text)
        await stage.pilot.press("y")
        await stage.until(lambda: not stage.app.is_running)

    from kvnotes_local.tui.last_session import LastSession
    from tests.tui.fake_engine import Script

    script = play(first, script=Script(answer=None))
    assert script.calls[-1] == "park"
    last = LastSession.load(tmp_path / "data")
    assert last.draft == "my draft"
    assert last.model == Path("/models/Tiny-1B.gguf")

    async def second(stage: Stage) -> None:
        assert "Tell me all" in stage.text
        assert "Well then" in stage.text
        assert "(stopped)" in stage.text
        assert stage.composer.text == "my draft"

    play(second, chat=last.chat, draft=last.draft, params=EngineParams(n_ctx=2048))


def test_a_damaged_last_session_is_as_none(tmp_path: Path) -> None:
    from kvnotes_local.tui.last_session import FILE_NAME, LastSession

    LastSession(Path("/m.gguf"), EngineParams(n_ctx=512), "abc", "draft").save(tmp_path)
    assert LastSession.load(tmp_path) == LastSession(Path("/m.gguf"), EngineParams(n_ctx=512), "abc", "draft")
    data = json.loads((tmp_path / FILE_NAME).read_text())
    for damage in ("{", "[]", json.dumps({**data, "params": {**data["params"], "n_ctx": -1}})):
        (tmp_path / FILE_NAME).write_text(damage)
        assert LastSession.load(tmp_path) == LastSession()
