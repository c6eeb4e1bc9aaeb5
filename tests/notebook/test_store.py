"""The store of chats by itself: what it writes, what it refuses, and what comes back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvnotes_local.chat_format.turns import FieldSpan
from kvnotes_local.notebook.segment import Freshness, Kind, Run, Segment
from kvnotes_local.notebook.store.chats import ChatChangedError, ChatStore
from kvnotes_local.notebook.store.database import ChatStoreError
from kvnotes_local.notebook.store.export import chat_json, chat_markdown
from kvnotes_local.notebook.store.params import ChatParams
from kvnotes_local.notebook.store.records import as_tree

CHAT, OTHER = "aa" * 8, "bb" * 8
NEW = ("tiny", "fingerprint", ChatParams())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChatStore]:
    store = ChatStore(tmp_path / "chats.sqlite")
    yield store
    store.close()


@pytest.fixture
def elsewhere(store: ChatStore) -> Iterator[ChatStore]:
    """The same chats, opened by another program."""
    store = ChatStore(store.path)
    yield store
    store.close()


def said(*texts: str) -> tuple[Segment, ...]:
    """Questions and answers in turn, a token for each letter."""
    kinds = (Kind.USER, Kind.ASSISTANT)
    return tuple(
        Segment(
            kinds[number % 2],
            tuple(map(ord, text)),
            text,
            content_stop=len(text),
            runs=(Run(len(text), Freshness.FRESH),),
        )
        for number, text in enumerate(texts)
    )


class TestALateWrite:
    """What a program stores on top of something that it has not seen."""

    def test_of_another_version_is_refused_and_stores_nothing(self, store: ChatStore, elsewhere: ChatStore) -> None:
        seen = store.save(CHAT, said("one"), "ask", new=NEW)
        elsewhere.save(CHAT, said("one", "theirs"), "answer", after=seen, n_same=1)
        there = elsewhere.load(CHAT)
        with pytest.raises(ChatChangedError, match="changed by another program"):
            store.save(CHAT, said("one", "mine"), "answer", after=seen, n_same=1)
        with pytest.raises(ChatChangedError, match="changed by another program"):
            store.check_unchanged(CHAT, seen)
        assert elsewhere.load(CHAT) == there
        assert store.operations(CHAT) == ("ask", "answer")
        assert [found.number for found in store.search("theirs")] == [1]
        assert store.search("mine") == ()

    def test_of_a_removed_chat_does_not_bring_it_back(self, store: ChatStore, elsewhere: ChatStore) -> None:
        seen = store.save(CHAT, said("one"), "ask", new=NEW)
        elsewhere.remove(CHAT)
        with pytest.raises(ChatChangedError, match="removed it"):
            store.save(CHAT, said("one", "mine"), "answer", after=seen)
        with pytest.raises(ChatChangedError, match="removed it"):
            store.check_unchanged(CHAT, seen)
        assert store.list() == ()
        assert store.search("mine") == ()

    def test_is_refused_only_where_it_is_late(self, store: ChatStore, elsewhere: ChatStore) -> None:
        seen = store.save(CHAT, said("one"), "ask", new=NEW)
        elsewhere.save(OTHER, said("another chat"), "ask", new=NEW)
        store.check_unchanged(CHAT, seen)
        later = store.save(CHAT, said("one", "mine"), "answer", after=seen)
        assert later > seen
        assert store.last_operation(CHAT) == later
        assert elsewhere.load(CHAT).segments == said("one", "mine")


@pytest.mark.parametrize("says_so", [True, False], ids=["told which are the same", "left to find out"])
@pytest.mark.parametrize(
    ("before", "after", "written"),
    [
        (["a", "b"], ["a", "b", "c"], {2}),
        (["a", "b", "c"], ["a", "b"], set()),
        (["a", "b", "c"], ["a", "b", "c"], set()),
        (["a", "b", "c"], ["a", "x", "c"], {1, 2}),
        (["a", "b", "c"], ["x", "b", "c"], {0, 1, 2}),
        (["a", "b"], ["a"], set()),
        (["a", "b"], [], set()),
        ([], ["a"], {0}),
    ],
)
def test_segments_in_front_of_the_first_change_are_not_written_again(
    store: ChatStore, before: list[str], after: list[str], written: set[int], says_so: bool
) -> None:
    store.save(CHAT, said(*before), "first", new=NEW)
    store.save(OTHER, said("another"), "first", new=NEW)  # so that a text written again gets another place
    spy = sqlite3.connect(store.path)
    with spy:
        spy.execute("CREATE TABLE written (what TEXT, number INTEGER)")
        for what, row in (("INSERT", "new"), ("DELETE", "old"), ("UPDATE", "new")):
            spy.execute(
                f"CREATE TRIGGER on_{what} AFTER {what} ON segments "
                f"BEGIN INSERT INTO written VALUES ('{what}', {row}.number); END"
            )
        places = dict(spy.execute("SELECT number, rowid FROM texts WHERE chat = ?", (CHAT,)))
    n_same = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(map(len, (before, after)))
    )
    store.save(CHAT, said(*after), "second", n_same=n_same if says_so else 0)
    assert {number for (number,) in spy.execute("SELECT number FROM written WHERE what != 'DELETE'")} == written
    gone = {number for (number,) in spy.execute("SELECT number FROM written WHERE what = 'DELETE'")}
    assert gone == set(range(n_same, len(before)))
    now = dict(spy.execute("SELECT number, rowid FROM texts WHERE chat = ?", (CHAT,)))
    assert {number: now[number] for number in range(n_same)} == {number: places[number] for number in range(n_same)}
    spy.close()
    with pytest.raises(ChatStoreError, match="trigger"):
        ChatStore(store.path)
    assert store.load(CHAT).segments == said(*after)
    for text in {*before, *after}:
        assert [found.number for found in store.search(text) if found.chat.id == CHAT] == [
            number for number, other in enumerate(after) if other == text
        ]


def test_every_field_of_a_segment_comes_back(store: ChatStore) -> None:
    full = Segment(
        Kind.ASSISTANT,
        tuple(range(20)),
        text="text",
        name="name",
        content_start=2,
        content_stop=18,
        fields=(FieldSpan("who", "Ada", 3, 5),),
        runs=(Run(4, Freshness.REPAIRED), Run(16, Freshness.SPLICED)),
        artifact="/some/file",
        seam=4,
        value="value",
        reasoning="thought",
        reasoning_start=6,
        reasoning_stop=9,
        stopped=True,
    )
    store.save(CHAT, (full, replace(full, stopped=False, artifact=None)), "ask", new=NEW)
    assert store.load(CHAT).segments == (full, replace(full, stopped=False, artifact=None))


def segment_with(**more: object) -> Segment:
    return replace(said("abcd")[0], **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        segment_with(content_start=3, content_stop=2),
        segment_with(content_start=-1),
        segment_with(content_stop=5),
        segment_with(tokens=(1, -1, 3, 4)),
        segment_with(runs=(Run(3, Freshness.FRESH),)),
        segment_with(runs=(Run(5, Freshness.FRESH), Run(-1, Freshness.STALE))),
        segment_with(seam=5),
        segment_with(seam=-1),
        segment_with(reasoning_start=3, reasoning_stop=2),
        segment_with(reasoning_start=-1),
        segment_with(reasoning_stop=5),
        segment_with(fields=(FieldSpan("a", "b", 3, 2),)),
        segment_with(fields=(FieldSpan("a", "b", 0, 1), FieldSpan("a", "b", 3, 5))),
        segment_with(fields=(FieldSpan("a", "b", -1, 2),)),
    ],
)
def test_a_segment_that_contradicts_itself_does_not_come_back(store: ChatStore, bad: Segment) -> None:
    store.save(CHAT, (bad,), "ask", new=NEW)
    with pytest.raises(ChatStoreError, match="damaged"):
        store.load(CHAT)


def test_a_segment_may_fill_its_bounds(store: ChatStore) -> None:
    edge = segment_with(
        content_start=4, content_stop=4, seam=4, reasoning_start=4, reasoning_stop=4, fields=(FieldSpan("a", "", 4, 4),)
    )
    store.save(CHAT, (edge, segment_with(tokens=(0, 1, 2, 3))), "ask", new=NEW)
    assert store.load(CHAT).segments[0] == edge


class TestFork:
    def test_holds_the_segments_asked_for_and_no_more(self, store: ChatStore) -> None:
        store.save(CHAT, said("one", "two", "three"), "ask", new=NEW)
        twins = [store.fork(CHAT, number) for number in (1, 2, 3)]
        assert [len(store.load(twin).segments) for twin in twins] == [1, 2, 3]
        summary = store.find(twins[1])
        assert (summary.parent, summary.parent_segments, summary.n_segments) == (CHAT, 2, 2)
        assert {(hit.chat.id, hit.number) for hit in store.search("two")} == {(CHAT, 1), (twins[1], 1), (twins[2], 1)}
        assert as_tree([summary, store.find(CHAT)]) == [(store.find(CHAT), 0), (summary, 1)]
        assert store.operations(twins[0]) == (f"fork {CHAT}",)

    @pytest.mark.parametrize("place", [0, -1, 4])
    def test_at_a_place_that_is_not_there_is_refused(self, store: ChatStore, place: int) -> None:
        store.save(CHAT, said("one", "two", "three"), "ask", new=NEW)
        with pytest.raises(ChatStoreError, match="3 segments"):
            store.fork(CHAT, place)
        assert len(store.list()) == 1


def test_a_removed_chat_that_is_put_back_is_what_it_was(store: ChatStore) -> None:
    store.save(CHAT, said("one", "two"), "ask", new=NEW)
    twin = store.fork(CHAT, 1)
    for chat in (twin, CHAT):
        before, listed, hits = store.load(chat), store.list(), store.search("one")
        removed = store.remove(chat)
        assert chat not in {one.id for one in store.list()}
        store.put_back(removed)
        again = store.load(chat)
        assert (again.summary, again.segments, again.params) == (before.summary, before.segments, before.params)
        assert {one.id for one in store.list()} == {one.id for one in listed}
        assert {(hit.chat.id, hit.number) for hit in store.search("one")} == {(hit.chat.id, hit.number) for hit in hits}


def test_an_id_finds_its_chat_although_others_begin_with_it(store: ChatStore) -> None:
    for chat in ("abc", "abcd", "abd"):
        store.save(chat, said(chat), "ask", new=NEW)
    assert store.find("abc").id == "abc"
    assert store.find("abcd").id == "abcd"
    assert store.find("abd").id == "abd"
    with pytest.raises(ChatStoreError, match="More than one chat"):
        store.find("ab")
    with pytest.raises(ChatStoreError, match="No chat"):
        store.find("b")
    for odd in ("", "%", "ab_", "ABC"):
        with pytest.raises(ChatStoreError, match="is no chat id"):
            store.find(odd)


def test_summaries_count_segments_and_tokens_of_their_own_chat(store: ChatStore) -> None:
    store.save(CHAT, said("four", "sixsix"), "ask", new=NEW)
    store.save(OTHER, (), "ask", new=NEW)
    counts = {one.id: (one.n_segments, one.n_tokens, one.title) for one in store.list()}
    assert counts == {CHAT: (2, 10, "four"), OTHER: (0, 0, "")}
    assert len(store.list(limit=1)) == 1
    store.rename(CHAT, "better")
    store.save(CHAT, said("seven", "x"), "edit")
    assert store.find(CHAT).title == "better", "the first question names a chat only once"
    assert [one.id for one, _ in as_tree(store.list())] == [CHAT, OTHER], "last used first"


def test_a_change_that_fails_half_way_leaves_nothing(store: ChatStore) -> None:
    store.save(CHAT, said("one"), "ask", new=NEW)
    before = store.load(CHAT)
    spy = sqlite3.connect(store.path)
    with spy:
        spy.execute("CREATE TRIGGER no BEFORE INSERT ON operations BEGIN SELECT RAISE(ABORT, 'no more'); END")
    with pytest.raises(ChatStoreError, match="no more"):
        store.save(CHAT, said("other", "two"), "edit")
    with spy:
        spy.execute("DROP TRIGGER no")
    spy.close()
    assert store.load(CHAT) == before
    assert store.search("two") == ()
    store.save(CHAT, said("other", "two"), "edit")
    assert store.load(CHAT).segments == said("other", "two")


def test_exports_hold_what_was_said_and_thought(store: ChatStore) -> None:
    question, answer, silent = said("Why?", "Because.", "")
    segments = (question, replace(answer, name="lamp", reasoning="Hm.", stopped=True), silent)
    store.save(CHAT, segments, "ask", new=NEW)
    chat = store.load(CHAT)
    headings = [line for line in chat_markdown(chat).splitlines() if line.startswith("#")]
    assert headings == ["# Why?", "## User", "## Assistant: lamp (stopped)"], "what says nothing has no heading"
    assert chat_markdown(chat).index("Hm.") < chat_markdown(chat).index("Because.")
    document = json.loads(chat_json(chat))
    assert [one["text"] for one in document["segments"]] == ["Why?", "Because.", ""]
    assert [one["tokens"] for one in document["segments"]] == [4, 8, 0]
    assert (document["chat_id"], document["model"], document["segments"][1]["reasoning"]) == (CHAT, "tiny", "Hm.")


def test_parameters_are_kept_with_their_own_chat(store: ChatStore) -> None:
    for chat in (CHAT, OTHER):
        store.save(chat, said("one"), "ask", new=NEW)
    store.set_params(CHAT, ChatParams(max_tokens=7))
    assert (store.load(CHAT).params.max_tokens, store.load(OTHER).params) == (7, ChatParams())


def test_chats_that_descend_from_themselves_are_listed_all_the_same(store: ChatStore) -> None:
    store.save(CHAT, said("one"), "ask", new=NEW)
    one = store.find(CHAT)
    circle = [replace(one, id="a", parent="b"), replace(one, id="b", parent="a"), replace(one, id="c", parent=None)]
    assert as_tree(circle) == [(circle[2], 0), (circle[0], 0), (circle[1], 0)]
