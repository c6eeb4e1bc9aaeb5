"""Chats outlive the process: stored as they grow, found again, gone on with, and told apart."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvnotes_local.chat_format.finding import FoundIn, find_chat_format
from kvnotes_local.contract.generation import Generation, Sampling, StopReason, TokenEvent
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.contract.plan import Decode
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.engine.sequences.state_shelf import forget_states_aside, put_state_back, set_state_aside
from kvnotes_local.errors import ContextFullError, UsageError
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.notebook.changes import rebuild
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.on_full import OnFull
from kvnotes_local.notebook.segment import Kind
from kvnotes_local.notebook.store import database as chat_database
from kvnotes_local.notebook.store.chats import ChatChangedError, ChatStore
from kvnotes_local.notebook.store.database import ChatStoreError
from kvnotes_local.notebook.store.export import chat_json, chat_markdown
from kvnotes_local.notebook.store.params import ChatParams
from kvnotes_local.notebook.store.records import as_tree
from kvnotes_local.notebook.stored_chat import ChatOptions, open_chat
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary
from tests.chat_format.chat_templates import THINKING
from tests.conftest import both_engines
from tests.zoo import zoo_model

MakeEngine = Callable[..., LlamaEngine]


@pytest.fixture
def store(tmp_path: Path) -> ChatStore:
    return ChatStore(tmp_path / "data" / "chats.sqlite")


@pytest.fixture
def library(tmp_path: Path) -> SkillLibrary:
    folder = tmp_path / "skills" / "lamp"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: lamp\ndescription: d\n---\nThe lamp is {{colour|green}}.\n")
    return SkillLibrary([folder.parent])


@both_engines
def test_a_chat_comes_back_as_it_was(
    tiny_engine: MakeEngine, store: ChatStore, library: SkillLibrary, tmp_path: Path
) -> None:
    engine = tiny_engine()
    compiler = SkillCompiler(engine, ArtifactStore(tmp_path / "a"))
    chat = open_chat(
        store, engine, "new", ChatOptions(library=library, compiler=compiler, system="Be kind to {{who|Ada}}.")
    )
    chat.notebook.splice("lamp")
    reply = chat.notebook.ask("Which colour?", max_tokens=5)
    chat.notebook.set("colour", "blue")
    stored = store.load(chat.id)
    assert stored.segments == chat.notebook.segments
    assert [segment.proof for segment in stored.segments if segment.kind is Kind.ASSISTANT] == [reply.proof]
    assert stored.summary.title == "Which colour?"


@pytest.mark.parametrize("name", ["llama", "gemma3", "falcon-h1", "mamba"])
@pytest.mark.parametrize("kept", [True, False], ids=["state kept", "state lost"])
def test_a_new_process_goes_on_with_the_same_answer(
    zoo_directory: Path, store: ChatStore, library: SkillLibrary, tmp_path: Path, name: str, kept: bool
) -> None:
    """The first engine is closed; the second one knows only what is on disk."""
    params = EngineParams(n_ctx=1024, n_threads=1, type_k=GGMLType.F32, type_v=GGMLType.F32)

    def engine() -> LlamaEngine:
        return LlamaEngine(zoo_model(name, zoo_directory), params, cache_dir=tmp_path / "cache")

    with engine() as first:
        compiler = SkillCompiler(first, ArtifactStore(tmp_path / "a"))
        chat = open_chat(store, first, "new", ChatOptions(library=library, compiler=compiler))
        chat.notebook.splice("lamp")
        chat.notebook.ask("Which colour?", max_tokens=6)
        there = chat.notebook.fork() if name in {"llama", "gemma3"} else None
        assert chat.leave()
        expected = there.ask("Sure?", max_tokens=8).text if there else None
    if not kept:
        for path in (tmp_path / "cache" / "states").iterdir():
            path.unlink()
    with engine() as second:
        compiler = SkillCompiler(second, ArtifactStore(tmp_path / "a"))
        again = open_chat(store, second, chat.id, ChatOptions(library=library, compiler=compiler))
        assert again.restored is kept
        assert again.notebook.segments[: len(chat.notebook.segments)] == chat.notebook.segments
        again.notebook.check()
        reply = again.notebook.ask("Sure?", max_tokens=8)
        if kept and expected is not None:
            assert reply.text == expected
        if kept:
            assert reply.proof.prefilled < 60
        again.notebook.check()


def test_a_chat_of_another_model_is_refused(tiny_engine: MakeEngine, store: ChatStore) -> None:
    chat = open_chat(store, tiny_engine("llama"), "new")
    chat.notebook.say("a", "b")
    with pytest.raises(UsageError, match="--model"):
        open_chat(store, tiny_engine("qwen2"), chat.id)


def test_damaged_saved_state_is_not_used(tiny_engine: MakeEngine, store: ChatStore, measurements: Path) -> None:
    engine = tiny_engine()
    chat = open_chat(store, engine, "new")
    chat.notebook.ask("Hello?", max_tokens=3)
    chat.leave()
    (path,) = (p for p in (measurements / "states").iterdir() if p.stat().st_size)
    data = bytearray(path.read_bytes())
    data[-100] ^= 0xFF
    path.write_bytes(data)
    again = open_chat(store, engine, chat.id)
    assert again.restored is False
    again.notebook.check()
    path.unlink(missing_ok=True)


@both_engines
def test_switching_chats_prefills_nothing(tiny_engine: MakeEngine) -> None:
    engine = tiny_engine()
    chats = {key: Notebook(engine) for key in ("a", "b", "c")}
    for key, notebook in chats.items():
        notebook.ask(f"I am {key}", max_tokens=3)
    segments = {key: notebook.segments for key, notebook in chats.items()}
    expected = {key: notebook.fork().ask("Who?", max_tokens=4).text for key, notebook in chats.items()}
    for key, notebook in chats.items():
        assert notebook.park(key)
    for key in ("b", "a", "c"):
        notebook, restored = Notebook.resume(engine, segments[key], key)
        assert restored
        held = notebook.n_cached
        reply = notebook.ask("Who?", max_tokens=4)
        assert reply.text == expected[key]
        assert reply.proof.reused == held > 0


def test_changes_are_in_the_database_before_the_call_returns(tiny_engine: MakeEngine, store: ChatStore) -> None:
    chat = open_chat(store, tiny_engine(), "new")
    seen: list[int] = []

    def look(piece: str) -> None:
        other = ChatStore(store.path)
        seen.append(len([s for s in other.load(chat.id).segments if s.kind is Kind.USER]))
        other.close()

    chat.notebook.ask("Am I stored?", max_tokens=3, on_text=look)
    assert seen
    assert set(seen) == {1}, "the question must be stored before the answer begins"
    db = sqlite3.connect(store.path)
    assert [row[0] for row in db.execute("SELECT what FROM operations ORDER BY number")] == ["ask", "answer"]
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_two_programs_on_one_chat_lose_nothing_and_the_later_one_is_told(
    tiny_engine: MakeEngine, store: ChatStore
) -> None:
    engine = tiny_engine()
    chat = open_chat(store, engine, "new")
    chat.notebook.say("First", "yes")
    elsewhere = ChatStore(store.path)
    mine, theirs = open_chat(store, engine, chat.id), open_chat(elsewhere, engine, chat.id)
    theirs.notebook.say("Second, from elsewhere", "yes")
    with pytest.raises(ChatChangedError, match="another program"):
        mine.notebook.say("Second, from here", "yes")
    stored = [segment.text for segment in store.load(chat.id).segments if segment.kind is Kind.USER]
    assert stored == ["First", "Second, from elsewhere"]
    again = open_chat(store, engine, chat.id)
    again.notebook.say("Third, from here", "yes")
    with pytest.raises(ChatChangedError):
        theirs.notebook.undo()
    assert [s.text for s in elsewhere.load(chat.id).segments if s.kind is Kind.USER][-1] == "Third, from here"
    twin = again.fork()
    twin.notebook.say("In the fork", "yes")
    again.notebook.say("Fourth", "yes")


def test_a_change_that_could_not_be_stored_costs_no_work(tiny_engine: MakeEngine, store: ChatStore) -> None:
    """No token is read or generated for a chat that another program has changed or removed meanwhile."""
    engine = tiny_engine()
    chat = open_chat(store, engine, "new")
    chat.notebook.say("First {{limit|9}}", "yes")
    chat.notebook.read()
    mine, theirs = open_chat(store, engine, chat.id), open_chat(ChatStore(store.path), engine, chat.id)
    theirs.notebook.say("From elsewhere", "yes")
    before, n_cached, heard = mine.notebook.segments, mine.notebook.n_cached, list[str]()
    changes: list[Callable[[], object]] = [
        lambda: mine.notebook.ask("Hm?", max_tokens=3, on_text=heard.append),
        lambda: mine.notebook.edit(1, "Other"),
        lambda: mine.notebook.delete(1),
    ]
    for change in changes:
        with pytest.raises(ChatChangedError, match="changed by another program"):
            change()
        assert (mine.notebook.segments, mine.notebook.n_cached, heard) == (before, n_cached, [])
    store.remove(chat.id)
    with pytest.raises(ChatChangedError, match="removed it"):
        theirs.notebook.ask("Hm?", max_tokens=3, on_text=heard.append)
    assert not heard


def test_opening_a_chat_does_not_end_the_answer_that_another_program_is_giving(
    tiny_engine: MakeEngine, store: ChatStore
) -> None:
    engine = tiny_engine()
    chat = open_chat(store, engine, "new")

    def look(piece: str) -> None:
        other = open_chat(ChatStore(store.path), engine, chat.id)
        assert other.notebook.segments[-1].stopped
        other.notebook.close()

    reply = chat.notebook.ask("Hm?", max_tokens=3, on_text=look)
    assert store.load(chat.id).segments[-1].text == reply.text


def test_a_clock_that_jumps_back_changes_no_order(
    tiny_engine: MakeEngine, store: ChatStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine()
    first, second = open_chat(store, engine, "new"), open_chat(store, engine, "new")
    first.notebook.say("a", "b")
    second.notebook.say("c", "d")
    now = time.time()
    monkeypatch.setattr("kvnotes_local.notebook.store.chats.time.time", lambda: now - 86400 * 365)
    first.notebook.say("e", "f")
    assert [chat.id for chat in store.list()] == [first.id, second.id]
    third = open_chat(store, engine, "new")
    third.notebook.say("g", "h")
    assert store.list()[0].id == third.id
    assert [segment.text for segment in store.load(first.id).segments if segment.kind is Kind.USER] == ["a", "e"]


def test_search_finds_words_in_titles_and_texts(tiny_engine: MakeEngine, store: ChatStore) -> None:
    engine = tiny_engine()
    for words in ("the heron stands still", "bread needs time", "a HÉRON flew"):
        chat = open_chat(store, engine, "new")
        chat.notebook.say(words, "yes")
    assert {found.chat.title for found in store.search("heron")} == {"the heron stands still", "a HÉRON flew"}
    assert len(store.search("bread ti")) == 1
    assert not store.search("")
    for attack in ('" OR 1 --', "text:x", "NEAR(", "*", "a AND"):
        store.search(attack)


def test_removing_a_chat_removes_its_texts_and_keeps_others(tiny_engine: MakeEngine, store: ChatStore) -> None:
    engine = tiny_engine()
    first, second = open_chat(store, engine, "new"), open_chat(store, engine, "new")
    first.notebook.say("secret", "x")
    second.notebook.say("other", "y")
    store.remove(first.id)
    assert not store.search("secret")
    assert [chat.id for chat in store.list()] == [second.id]
    with pytest.raises(ChatStoreError, match="chats list"):
        store.load(first.id)


@pytest.mark.parametrize("order", ["first in first out", "last in first out"])
def test_chats_that_are_put_back_are_what_they_were(
    tiny_engine: MakeEngine, store: ChatStore, library: SkillLibrary, tmp_path: Path, order: str
) -> None:
    """Whatever was removed, and in whatever order it comes back: all that is stored is as if nothing had happened."""
    engine = tiny_engine()
    compiler = SkillCompiler(engine, ArtifactStore(tmp_path / "a"), n_leads=0)
    root = open_chat(store, engine, "new", ChatOptions(library=library, compiler=compiler))
    root.notebook.splice("lamp")
    root.notebook.ask("A heron?", max_tokens=3)
    child = root.fork()
    child.notebook.ask("Which one?", max_tokens=3)
    grandchild = child.fork()

    def everything() -> object:
        facts = [(chat.id, depth) for chat, depth in as_tree(store.list())]
        loaded = [store.load(one).segments for one, _ in facts]
        found = {(hit.chat.id, hit.number) for hit in store.search("heron")}
        return facts, store.list(), loaded, found, [store.operations(one) for one, _ in facts]

    before = everything()
    removed = [store.remove(one.id) for one in (root, child, grandchild)]
    assert store.list() == ()
    for one in removed if order == "first in first out" else reversed(removed):
        store.put_back(one)
    assert everything() == before


def test_forks_written_before_parents_could_be_gone_keep_their_parent(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite"
    db = sqlite3.connect(path)
    folder = Path(chat_database.__file__).parent / "schema"
    db.executescript((folder / "001_chats.sql").read_text())
    db.execute("INSERT INTO chats VALUES ('aa', 'One', 1, 1, 'm', 'f', '{}', NULL, 0)")
    db.execute("INSERT INTO chats VALUES ('bb', 'Two', 2, 2, 'm', 'f', '{}', 'aa', 3)")
    db.execute("PRAGMA user_version = 1")
    db.commit()
    db.close()
    store = ChatStore(path)
    assert [(one.id, one.parent, one.parent_segments) for one in store.list()] == [("bb", "aa", 3), ("aa", None, 0)]
    store.put_back(store.remove("aa"))
    assert [one.parent for one in store.list()] == ["aa", None]


@pytest.mark.parametrize("name", ["llama", "falcon-h1"])
def test_the_state_of_a_chat_that_is_put_back_is_taken_up_again(
    tiny_engine: MakeEngine, store: ChatStore, library: SkillLibrary, tmp_path: Path, measurements: Path, name: str
) -> None:
    """Also of a chat whose skill was edited, which no artifact could give back."""
    engine = tiny_engine(name)
    compiler = SkillCompiler(engine, ArtifactStore(tmp_path / "a"), n_leads=0)
    chat = open_chat(store, engine, "new", ChatOptions(library=library, compiler=compiler))
    chat.notebook.splice("lamp")
    chat.notebook.set("colour", "blue")
    chat.notebook.ask("Which colour?", max_tokens=3)
    assert chat.leave()
    removed = store.remove(chat.id)
    set_state_aside(measurements, chat.id)
    assert engine.unpark(chat.id) is None
    store.put_back(removed)
    put_state_back(measurements, chat.id)
    again = open_chat(store, engine, chat.id, ChatOptions(library=library, compiler=compiler))
    assert again.restored
    assert again.notebook.segments == chat.notebook.segments
    assert again.notebook.cost.prefilled == again.notebook.cost.spliced == 0
    again.leave()
    set_state_aside(measurements, chat.id)
    forget_states_aside(measurements)
    put_state_back(measurements, chat.id)
    assert engine.unpark(chat.id) is None


def test_a_skill_of_which_a_beginning_is_held_is_spliced_from_there_on(
    tiny_engine: MakeEngine, store: ChatStore, library: SkillLibrary, tmp_path: Path
) -> None:
    engine = tiny_engine()
    compiler = SkillCompiler(engine, ArtifactStore(tmp_path / "a"), n_leads=0)
    chat = open_chat(store, engine, "new", ChatOptions(library=library, compiler=compiler))
    skill = chat.notebook.splice("lamp", repair=4)
    whole = chat.notebook.segments
    start = sum(segment.n_tokens for segment in whole[:-1])
    for kept in (0, 2, 4, skill.n_tokens - 1):
        change = rebuild(whole, chat.notebook.tokens[: start + kept])
        decoded = sum(part.n_tokens for part in change.parts if isinstance(part, Decode))
        assert (decoded, change.repaired) == (max(0, 4 - kept), max(0, 4 - kept))
        assert sum(part.n_tokens for part in change.parts) == len(chat.notebook.tokens)


def test_exports_hold_what_was_said(tiny_engine: MakeEngine, store: ChatStore) -> None:
    chat = open_chat(store, tiny_engine(), "new")
    chat.notebook.say("# not a heading", "fine")
    stored = store.load(chat.id)
    assert "# not a heading" in chat_markdown(stored)
    assert '"text": "# not a heading"' in chat_json(stored)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(ChatStoreError, match=r"chats\.sqlite"):
        ChatStore(path)


def test_a_database_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite"
    ChatStore(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(ChatStoreError, match="newer"):
        ChatStore(path)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("kind", "gossip"),
        ("tokens", b"123"),
        ("content_stop", 9999),
        ("runs", '[[1, "fresh"]]'),
        ("fields", "nonsense"),
    ],
)
def test_rows_that_make_no_segment_are_refused(
    tiny_engine: MakeEngine, store: ChatStore, column: str, value: object
) -> None:
    chat = open_chat(store, tiny_engine(), "new")
    chat.notebook.say("a", "b")
    db = sqlite3.connect(store.path)
    db.execute(f"UPDATE segments SET {column} = ? WHERE number = 1", (value,))
    db.commit()
    with pytest.raises(ChatStoreError, match="damaged"):
        store.load(chat.id)


def test_the_database_is_for_its_user_only(store: ChatStore) -> None:
    assert store.path.stat().st_mode & 0o077 == 0


# -- the context is full -------------------------------------------------------------------------------------------------


@both_engines
def test_the_oldest_turns_leave_a_full_context_and_pinned_ones_stay(
    tiny_engine: MakeEngine, library: SkillLibrary, tmp_path: Path
) -> None:
    engine = tiny_engine(n_ctx=512)
    notices: list[str] = []
    compiler = SkillCompiler(engine, ArtifactStore(tmp_path), n_leads=0)
    notebook = Notebook(engine, library=library, compiler=compiler, system="Short.", on_notice=notices.append)
    notebook.splice("lamp", repair=0)
    for number in range(12):
        notebook.ask(f"Question {number}, a little longer than it has to be?", max_tokens=4)
        notebook.check()
    texts = [segment.text for segment in notebook.segments if segment.kind is Kind.USER]
    assert texts[0] != "Question 0, a little longer than it has to be?"
    assert texts[-1].startswith("Question 11")
    assert notebook.skills == ("lamp",)
    assert "leave" in notices[0]
    assert len(notebook.tokens) <= 512


def test_a_full_context_can_be_refused_instead(tiny_engine: MakeEngine) -> None:
    notebook = Notebook(tiny_engine(n_ctx=512), on_full=OnFull.REFUSE)
    notebook.say("Many words that fill it. " * 20, "So be it.")
    before = notebook.segments
    with pytest.raises(ContextFullError, match="--n-ctx"):
        notebook.ask("One more?", max_tokens=50)
    assert notebook.segments == before


# -- reasoning -----------------------------------------------------------------------------------------------------------


class Script:
    """Stands in for the model's free will only: a generation that says given tokens, all else is the real engine."""

    def __init__(self, engine: LlamaEngine, text: str) -> None:
        self.engine = engine
        self.tokens = engine.tokenize(text)

    def __call__(self, seq: int, sampling: Sampling, max_tokens: int) -> Generation:
        generation = Generation()

        def events():  # type: ignore[no-untyped-def]
            for token in self.tokens:
                generation.tokens.append(token)
                yield TokenEvent(token, self.engine.detokenize([token]))
            generation.stop_reason = StopReason.END

        generation.events = events()
        return generation


def test_reasoning_of_finished_turns_leaves_the_cache_and_stays_in_the_transcript(
    tiny_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    engine = tiny_engine()
    chat_format = find_chat_format(FoundIn(THINKING, engine.tokenize, "<s>", "</s>", adds_bos=True))
    assert chat_format.reasoning is not None
    assert chat_format.reasoning.leaves
    monkeypatch.setattr(engine, "info", replace(engine.info, chat_format=chat_format))
    monkeypatch.setattr(engine, "generate", Script(engine, "I wonder.\n</think>\n\nYes."))
    notebook = Notebook(engine)
    first = notebook.ask("Is it?")
    assert notebook.segments[-1].text == "Yes."
    assert notebook.segments[-1].reasoning == "I wonder."
    notebook.ask("Really?")
    answer = next(segment for segment in notebook.segments if segment.kind is Kind.ASSISTANT)
    assert engine.detokenize(answer.tokens) == "<|im_start|>assistant\nYes.<|im_end|>\n"
    assert answer.reasoning == "I wonder."
    assert answer.n_tokens < first.segment.n_tokens
    notebook.check()
    notebook.read()
    notebook.check()


def test_logits_after_reasoning_left_are_near_those_of_never_having_had_it(tiny_engine: MakeEngine) -> None:
    """With one layer less of notes nothing exact can be promised, but rows must be where the template puts them."""
    engine = tiny_engine()
    seq = engine.new_sequence()
    from kvnotes_local.contract.plan import Decode, Keep

    head, thought, rest = (tuple(engine.tokenize(t)) for t in ("Question. ", "Long thought. ", "Answer. "))
    engine.apply(seq, [Decode(head + thought + rest)])
    n, m = len(head), len(head + thought)
    engine.apply(seq, [Keep(0, n), Keep(m, m + len(rest)), Decode(rest[:1])])
    engine.check(seq)
    fresh = engine.new_sequence()
    found = engine.logits(seq)
    engine.apply(fresh, [Decode(head + rest + rest[:1])])
    wanted = engine.logits(fresh)
    assert np.corrcoef(found, wanted)[0, 1] > 0.8


def test_a_chat_keeps_its_parameters(tiny_engine: MakeEngine, store: ChatStore) -> None:
    engine = tiny_engine()
    params = ChatParams(Sampling(temperature=0.7, seed=5, grammar='root ::= "a"'), max_tokens=9, on_full=OnFull.REFUSE)
    chat = open_chat(store, engine, "new")
    chat.change_params(params)
    chat.notebook.ask("Hello?", max_tokens=3)
    assert store.load(chat.id).params == params
    assert open_chat(store, engine, chat.id).params == params
    assert (
        open_chat(store, engine, chat.id, ChatOptions(on_full=OnFull.DROP_OLDEST)).params.on_full is OnFull.DROP_OLDEST
    )
    assert store.load(chat.id).params.on_full is OnFull.DROP_OLDEST


def test_a_chat_whose_first_change_is_refused_is_not_stored(tiny_engine: MakeEngine, store: ChatStore) -> None:
    chat = open_chat(store, tiny_engine(n_ctx=256), "new", ChatOptions(on_full=OnFull.REFUSE))
    with pytest.raises(ContextFullError):
        chat.notebook.ask("word " * 2000, max_tokens=3)
    assert store.list() == ()
    chat.notebook.ask("Hello?", max_tokens=3)
    assert [one.id for one in store.list()] == [chat.id]


def test_forks_are_stored_as_a_tree(tiny_engine: MakeEngine, store: ChatStore) -> None:
    engine = tiny_engine()
    root = open_chat(store, engine, "new")
    root.notebook.ask("One?", max_tokens=3)
    early = root.fork(at=len(root.notebook.segments))
    root.notebook.ask("Two?", max_tokens=3)
    early.notebook.ask("Other?", max_tokens=3)
    late = early.fork()
    assert late.notebook.n_cached == early.notebook.n_cached, "a fork shares the cells"
    other = open_chat(store, engine, "new")
    other.notebook.say("a", "b")
    tree = as_tree(store.list())
    assert {(one.id, depth) for one, depth in tree} == {(root.id, 0), (early.id, 1), (late.id, 2), (other.id, 0)}
    order = [one.id for one, _ in tree]
    assert order[order.index(root.id) :][:3] == [root.id, early.id, late.id]
    assert store.load(early.id).segments == early.notebook.segments
    assert store.load(late.id).segments == late.notebook.segments
    assert [hit.chat.id for hit in store.search("Other")] == [early.id, late.id]
    store.remove(root.id)
    assert {one.parent for one in store.list() if one.id == early.id} == {None}


def test_a_fork_begins_with_the_saved_state_of_its_parent(
    zoo_directory: Path, store: ChatStore, tmp_path: Path
) -> None:
    params = EngineParams(n_ctx=1024, n_threads=1)
    with LlamaEngine(zoo_model("llama", zoo_directory), params, cache_dir=tmp_path) as engine:
        chat = open_chat(store, engine, "new")
        chat.notebook.ask("A question with some words in it?", max_tokens=6)
        first = len(chat.notebook.segments)
        chat.notebook.ask("And another one?", max_tokens=6)
        expected = chat.notebook.fork(first).ask("So?", max_tokens=6).text
        assert chat.leave()
    twin = store.fork(chat.id, first)
    with LlamaEngine(zoo_model("llama", zoo_directory), params, cache_dir=tmp_path) as engine:
        again = open_chat(store, engine, twin)
        assert again.restored is False
        held = again.notebook.n_cached
        reply = again.notebook.ask("So?", max_tokens=6)
        assert reply.text == expected
        assert reply.proof.reused == held > 0, "what both chats have in common came from the state of the parent"
        again.notebook.check()


def test_compiling_tells_what_reading_would_have_taken(tiny_engine: MakeEngine, tmp_path: Path) -> None:
    """A chat in which nothing long was ever read still says what it saved."""
    folder = tmp_path / "skills" / "long"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: long\ndescription: d\n---\n" + "The lamp is green and warm. " * 6)
    engine = tiny_engine()
    compiler = SkillCompiler(engine, ArtifactStore(tmp_path / "a"))
    notebook = Notebook(engine, library=SkillLibrary([folder.parent]), compiler=compiler, system="x")
    assert notebook.ask("Hi", max_tokens=2).proof.recompute_ms is None
    notebook.splice("long")
    proof = notebook.ask("Hi", max_tokens=2).proof
    assert proof.recompute_ms is not None
    assert proof.recompute_ms > 0
