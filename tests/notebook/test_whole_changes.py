"""A change succeeds as a whole or leaves the chat as it was; what is stored comes back as what it is now."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kvnotes_local.contract.generation import StopReason
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.errors import ContextFullError, UsageError
from kvnotes_local.notebook.context_room import turns_to_drop
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.on_full import OnFull
from kvnotes_local.notebook.segment import Freshness, Kind, Segment
from kvnotes_local.notebook.store.chats import ChatStore
from kvnotes_local.notebook.stored_chat import ChatOptions, open_chat
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary
from tests.zoo import zoo_model

MakeEngine = Callable[..., LlamaEngine]
LEVELS = [level for level in EditLevel if level is not EditLevel.AUTO]


@pytest.fixture
def library(tmp_path: Path) -> SkillLibrary:
    folder = tmp_path / "skills" / "travel"
    folder.mkdir(parents=True)
    text = "The budget limit is {{limit|900 euros}}. Fly to {{city|Oslo}} only. " + "Keep every receipt. " * 8
    (folder / "SKILL.md").write_text(f"---\nname: travel\ndescription: d\n---\n{text}\n")
    return SkillLibrary([folder.parent])


def notebook_of(engine: LlamaEngine, library: SkillLibrary, tmp_path: Path, **how: object) -> Notebook:
    compiler = SkillCompiler(engine, ArtifactStore(tmp_path / "artifacts"), n_leads=1)
    return Notebook(engine, library=library, compiler=compiler, system="For {{who|Ada}}.", **how)  # type: ignore[arg-type]


def last_user(notebook: Notebook) -> int:
    return max(i for i, segment in enumerate(notebook.segments) if segment.kind is Kind.USER)


@pytest.mark.parametrize("level", LEVELS)
def test_an_edited_skill_is_made_anew_with_its_new_value(
    zoo_directory: Path, library: SkillLibrary, tmp_path: Path, level: EditLevel
) -> None:
    """Whatever later changes did to its freshness, and although its artifact, with the old value, is still there."""
    store = ChatStore(tmp_path / "chats.sqlite")
    with LlamaEngine(
        zoo_model("llama", zoo_directory), EngineParams(n_ctx=1024, n_threads=1), cache_dir=tmp_path
    ) as engine:
        compiler = SkillCompiler(engine, ArtifactStore(tmp_path / "artifacts"), n_leads=1)
        how = {"library": library, "compiler": compiler}
        chat = open_chat(store, engine, "new", ChatOptions(system="For {{who|Ada}}.", **how))  # type: ignore[arg-type]
        chat.notebook.splice("travel", repair=5)
        chat.notebook.set("limit", "5", level=level)
        chat.notebook.set("who", "Grace and everybody else", level=EditLevel.FIELD)
        segments = chat.notebook.segments
        chat.notebook.close()
        again = open_chat(store, engine, chat.id, ChatOptions(**how))  # type: ignore[arg-type]
        assert again.restored is False
        again.notebook.check()
        assert [segment.tokens for segment in again.notebook.segments] == [segment.tokens for segment in segments]
        skill = next(segment for segment in again.notebook.segments if segment.kind is Kind.SKILL)
        spliced = any(run.freshness is Freshness.SPLICED for run in skill.runs)
        assert spliced is (level is EditLevel.ERRATUM), (
            "an artifact serves as long as the text is the one it was made of"
        )
        if spliced:
            assert skill.runs[0].n_tokens == 5, "the seam is repaired again"


def test_as_many_turns_leave_as_have_to_and_no_more() -> None:
    rng = random.Random(3)
    for _ in range(200):
        kinds = [Kind.SYSTEM]
        for _ in range(rng.randrange(1, 30)):
            kinds += rng.choice([[Kind.USER, Kind.ASSISTANT], [Kind.USER], [Kind.SKILL], [Kind.ERRATUM]])
        segments = [Segment(kind, tuple(range(rng.randrange(1, 40)))) for kind in kinds]
        total = sum(segment.n_tokens for segment in segments)
        room = rng.randrange(0, total + 10)
        leaving = turns_to_drop(segments, room)
        left = total - sum(segments[index].n_tokens for index in leaving)
        turns = {i for i, kind in enumerate(kinds) if kind in {Kind.USER, Kind.ASSISTANT}}
        assert leaving <= turns
        others = total - sum(segments[index].n_tokens for index in turns)
        if others > room:
            assert leaving == turns, "nothing else can leave"
        else:
            assert left <= room
        if leaving:
            last = max(i for i in leaving if kinds[i] is Kind.USER)
            back = sum(segments[i].n_tokens for i in leaving if i >= last)
            assert left + back > room, "the last exchange to leave had to"


def test_a_long_chat_keeps_room_for_the_answer(tiny_engine: MakeEngine, library: SkillLibrary, tmp_path: Path) -> None:
    notebook = notebook_of(tiny_engine("llama", n_ctx=512), library, tmp_path)
    for number in range(100):
        notebook.say(f"Question {number}?", "An answer with some words.")
    reply = notebook.ask("And now?", max_tokens=60)
    if reply.stop_reason == StopReason.LENGTH:
        assert reply.proof.generated == 60
    assert len(notebook.tokens) <= 512
    notebook.check()


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("too long", ContextFullError),
        ("no room", ContextFullError),
        ("no tokens", UsageError),
        ("unknown option", TypeError),
    ],
)
@pytest.mark.parametrize("way", ["edit_and_resend", "regenerate", "ask"])
def test_a_question_that_fails_takes_nothing_away(
    tiny_engine: MakeEngine, library: SkillLibrary, tmp_path: Path, what: str, error: type[Exception], way: str
) -> None:
    notebook = notebook_of(tiny_engine("llama", n_ctx=512), library, tmp_path)
    notebook.ask("One?", max_tokens=4)
    notebook.ask("Two?", max_tokens=4)
    before = notebook.segments
    text = "word " * 900 if what == "too long" else "Other?"
    how: dict[str, object] = {"no tokens": {"max_tokens": 0}, "unknown option": {"nonsense": 1}}.get(what, {})
    if what == "no room":
        notebook.on_full = OnFull.REFUSE
        how = {"max_tokens": 600}
        notebook.say("x " * 200, "y")
        notebook.say("again?", "z")
        before = notebook.segments
    if way == "regenerate" and what == "too long":
        pytest.skip("regenerate asks what was asked before")
    calls: dict[str, Callable[[], object]] = {
        "ask": lambda: notebook.ask(text, **how),  # type: ignore[arg-type]
        "regenerate": lambda: notebook.regenerate(**how),
        "edit_and_resend": lambda: notebook.edit_and_resend(last_user(notebook), text, **how),
    }
    with pytest.raises(error):
        calls[way]()
    assert notebook.segments == before
    notebook.check()


def test_asking_again_is_one_step_to_undo(tiny_engine: MakeEngine, library: SkillLibrary, tmp_path: Path) -> None:
    notebook = notebook_of(tiny_engine("llama"), library, tmp_path)
    notebook.ask("One?", max_tokens=4)
    before = notebook.segments
    notebook.edit_and_resend(last_user(notebook), "Two?", max_tokens=4)
    after = notebook.segments
    assert notebook.undo()
    assert notebook.segments == before
    assert notebook.redo()
    assert [s.text for s in notebook.segments[:-1]] == [s.text for s in after[:-1]]
    notebook.check()


class TestAutoWaitsForTheQuestion:
    @pytest.fixture
    def notebook(self, tiny_engine: MakeEngine, library: SkillLibrary, tmp_path: Path) -> Notebook:
        notebook = notebook_of(tiny_engine("llama", n_ctx=1024), library, tmp_path)
        notebook.splice("travel")
        notebook.say("Hello", "Hi")
        return notebook

    def test_a_later_edit_replaces_it(self, notebook: Notebook) -> None:
        notebook.set("city", "Rome", level=EditLevel.AUTO)
        notebook.set("city", "Bergen", level=EditLevel.FULL)
        notebook.ask("Where?", max_tokens=2)
        assert notebook.fields["city"] == "Bergen"

    def test_undo_takes_it_back_alone(self, notebook: Notebook) -> None:
        before = notebook.segments
        notebook.set("city", "Rome", level=EditLevel.AUTO)
        assert notebook.fields["city"] == "Rome"
        assert notebook.undo()
        assert notebook.fields["city"] == "Oslo"
        assert notebook.segments == before

    def test_it_goes_with_the_skill_that_has_the_field(self, notebook: Notebook) -> None:
        notebook.set("city", "Rome", level=EditLevel.AUTO)
        notebook.drop("travel")
        reply = notebook.ask("Where?", max_tokens=2)
        assert reply.edits == ()
        assert not any(s.kind is Kind.ERRATUM and s.name == "city" for s in notebook.segments)

    def test_a_fork_has_it_too(self, notebook: Notebook) -> None:
        notebook.set("city", "Rome", level=EditLevel.AUTO)
        twin = notebook.fork()
        assert [edit.value for edit in twin.ask("Where?", max_tokens=2).edits] == ["Rome"]
        assert [edit.value for edit in notebook.ask("Where?", max_tokens=2).edits] == ["Rome"]

    def test_leaving_does_not_lose_it(self, notebook: Notebook) -> None:
        notebook.set("city", "Rome", level=EditLevel.AUTO)
        assert notebook.park("a chat")
        assert notebook.segments[-1].value == "Rome"
        again, restored = Notebook.resume(notebook.engine, notebook.segments, "a chat")
        assert restored
        assert again.fields["city"] == "Rome"


@pytest.mark.parametrize("level", [*LEVELS, EditLevel.AUTO])
def test_edits_in_a_full_context_make_the_oldest_turns_leave(
    tiny_engine: MakeEngine, library: SkillLibrary, tmp_path: Path, level: EditLevel
) -> None:
    notices: list[str] = []
    notebook = notebook_of(tiny_engine("llama", n_ctx=512), library, tmp_path, on_notice=notices.append)
    notebook.splice("travel")
    while len(notebook.tokens) < 480:
        notebook.say("M?", "M.")
    notebook.read()
    n = len(notebook.segments)
    notebook.set("city", "a town with a name of many, many, many letters", level=level)
    notebook.ask("Where?", max_tokens=4)
    assert len(notebook.segments) < n + 3
    assert notices
    assert notebook.fields["city"].startswith("a town")
    assert "travel" in notebook.skills
    notebook.check()


@pytest.mark.parametrize("name", ["mamba", "falcon-h1", "llama"])
def test_a_chat_can_be_forked_at_every_segment(
    tiny_engine: MakeEngine, library: SkillLibrary, tmp_path: Path, name: str
) -> None:
    notebook = notebook_of(tiny_engine(name, n_ctx=1024), library, tmp_path)
    notebook.ask("One?", max_tokens=4)
    notebook.ask("Two?", max_tokens=4)
    for place in range(len(notebook.segments) + 1):
        twin = notebook.fork(place)
        assert twin.segments == notebook.segments[:place]
        twin.ask("Three?", max_tokens=2)
        twin.check()
        twin.close()
    notebook.check()


def test_values_of_a_skill_that_is_there_already_are_set(
    tiny_engine: MakeEngine, library: SkillLibrary, tmp_path: Path
) -> None:
    notebook = notebook_of(tiny_engine("llama"), library, tmp_path)
    notebook.splice("travel")
    notebook.splice("travel", values={"city": "Rome"})
    assert notebook.fields["city"] == "Rome"
    assert notebook.skills == ("travel",)
    with pytest.raises(UsageError, match="seam"):
        notebook.splice("travel", repair=-3)
