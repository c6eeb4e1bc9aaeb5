"""Files and messages that lie: each parser gives a typed error or a sound value, never anything else.

Each is fed the seeds in ``corpus/``, accidents of them, and what hypothesis thinks of.
"""

from __future__ import annotations

import io
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvnotes_local.chat_format.sandbox import Message, TemplateError, TemplateRenderer
from kvnotes_local.contract.compile_job import CompileEvent
from kvnotes_local.contract.plan import Applied, Part
from kvnotes_local.engine.process.calls import CALLS, GenerationStep, Loaded
from kvnotes_local.engine.process.messages import Frame, FrameReader
from kvnotes_local.engine.process.wire import WireError, from_wire
from kvnotes_local.errors import KvnotesError
from kvnotes_local.evaluation.episode_file import load_episode
from kvnotes_local.models.added import AddedModels
from kvnotes_local.models.gguf_reader import read_gguf_header
from kvnotes_local.notebook.segment import Freshness, Kind, Run, Segment, all_tokens
from kvnotes_local.notebook.store.chats import ChatStore
from kvnotes_local.notebook.store.database import ChatStoreError
from kvnotes_local.notebook.store.export import chat_json, chat_markdown
from kvnotes_local.notebook.store.params import ChatParams
from kvnotes_local.notebook.store.records import as_tree
from kvnotes_local.skills.evals import load_questions
from kvnotes_local.skills.library import SkillLibrary
from kvnotes_local.skills.skill_file import load_skill

CORPUS = Path(__file__).parent / "corpus"
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def mutate(data: bytes, pick: random.Random) -> bytes:
    """One accident: flipped bits, a changed run, bytes lost, doubled or swapped."""
    changed = bytearray(data)
    at, length = pick.randrange(max(1, len(data))), pick.choice([1, 2, 4, 8, 32])
    match pick.randrange(6):
        case 0:
            changed[at : at + 1] = bytes([(data[at] if data else 0) ^ 1 << pick.randrange(8)])
        case 1:
            changed[at : at + length] = pick.randbytes(length)
        case 2:
            del changed[at : at + length]
        case 3:
            changed[at:at] = data[at : at + length] * pick.choice([1, 50])
        case 4:
            del changed[at:]
        case _:
            changed[at : at + length] = b"\xff" * length
    return bytes(changed)


def inputs(folder: str, seed: int, n: int = 80) -> Iterator[bytes]:
    """Every seed of a parser, and accidents of them."""
    seeds = [path.read_bytes() for path in sorted((CORPUS / folder).iterdir())]
    assert seeds
    yield from seeds
    pick = random.Random(f"{folder} {seed}")
    for _ in range(n):
        data = pick.choice(seeds)
        for _ in range(pick.randint(1, 3)):
            data = mutate(data, pick)
        yield data


Parser = Callable[[Path, bytes], object]


def parse_skill(folder: Path, data: bytes) -> object:
    (folder / "plain").mkdir(exist_ok=True)
    (folder / "plain" / "SKILL.md").write_bytes(data)
    SkillLibrary([folder])  # lists what it cannot read, and never raises
    return load_skill(folder / "plain").text()


def parse_evals(folder: Path, data: bytes) -> object:
    (folder / "plain").mkdir(exist_ok=True)
    (folder / "plain" / "SKILL.md").write_text("---\nname: plain\ndescription: d\n---\nText\n")
    (folder / "plain" / "evals.jsonl").write_bytes(data)
    return load_questions(load_skill(folder / "plain"))


def parse_gguf(folder: Path, data: bytes) -> object:
    (folder / "x.gguf").write_bytes(data)
    header = read_gguf_header(folder / "x.gguf")
    return header.n_layer, header.context_length, header.n_vocab, header.key_length, header.kind


def parse_episode(folder: Path, data: bytes) -> object:
    (folder / "x.toml").write_bytes(data)
    return load_episode(folder / "x.toml")


def parse_added_models(folder: Path, data: bytes) -> object:
    (folder / "models.json").write_bytes(data)
    return AddedModels(folder / "models.json").paths


PARSERS: dict[str, Parser] = {
    "skills": parse_skill,
    "evals": parse_evals,
    "gguf": parse_gguf,
    "episodes": parse_episode,
}


@pytest.mark.parametrize("name", PARSERS)
def test_damaged_files_give_a_typed_error_or_a_value(tmp_path: Path, name: str, again: int) -> None:
    read = refused = 0
    for data in inputs(name, again):
        try:
            PARSERS[name](tmp_path, data)
            read += 1
        except KvnotesError:
            refused += 1
    assert read, "at least one seed is sound"
    assert refused, "at least one is not"
    assert not Path("/tmp/kvnotes-was-here").exists()


@pytest.mark.parametrize("name", [*PARSERS, "models"])
@QUICK
@given(data=st.binary(max_size=300) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_any_bytes_give_a_typed_error_or_a_value(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"any-{name}"
    folder.mkdir(exist_ok=True)
    try:
        {**PARSERS, "models": parse_added_models}[name](folder, data)
    except KvnotesError:
        return


# -- messages of the engine process ----------------------------------------------------------------------------------------


def frames(data: bytes) -> list[Frame]:
    reader, found = FrameReader(io.BytesIO(data)), []  # type: ignore[arg-type]
    while (frame := reader.read()) is not None:
        found.append(frame)
    return found


def test_damaged_messages_are_refused_or_read(again: int) -> None:
    good = 0
    for data in inputs("frames", again, 200):
        try:
            good += len(frames(data))
        except WireError:
            continue
    assert good >= 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["is", "shape", "start", "stop", "tokens", "kind", "message"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)
KINDS = [Part, Applied, CompileEvent, Loaded, GenerationStep, tuple[int, ...], list[str], KvnotesError, float | None]


@QUICK
@given(data=JSON, kind=st.sampled_from(KINDS))
def test_no_payload_becomes_a_value_of_another_type(data: object, kind: object) -> None:
    try:
        value = from_wire(kind, data, memoryview(b""))
    except WireError:
        return
    if kind == tuple[int, ...]:
        assert isinstance(value, tuple)
        assert all(type(item) is int for item in value)
    elif kind == list[str]:
        assert all(isinstance(item, str) for item in value)
    elif kind == float | None:
        assert value is None or type(value) is float
    elif kind is KvnotesError:
        assert isinstance(value, KvnotesError)
    else:
        assert isinstance(value, kind)  # type: ignore[arg-type]


@QUICK
@given(data=JSON, name=st.sampled_from(sorted(CALLS)))
def test_no_call_is_made_with_arguments_that_it_does_not_take(data: object, name: str) -> None:
    for payload in (data, [["seq", data]], [[1, data], ["tokens", data]]):
        try:
            arguments = CALLS[name].read_arguments(payload, memoryview(b""))
        except WireError:
            continue
        assert arguments.keys() <= CALLS[name].arguments.keys()
        assert arguments.keys() >= CALLS[name].required


# -- the database of chats ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chats") / "chats.sqlite"
    store = ChatStore(path)
    user = Segment(Kind.USER, (1, 2, 3), "hello there", content_stop=3, runs=(Run(3, Freshness.FRESH),))
    store.save("0badcafe", [user, user], "say", new=("model", "f" * 64, ChatParams()))
    store.close()
    return path


def read_everything(store: ChatStore) -> None:
    as_tree(store.list())
    store.search("hello")
    for one in store.list():
        chat = store.load(one.id)
        assert sum(run.n_tokens for segment in chat.segments for run in segment.runs) == len(all_tokens(chat.segments))
        chat_markdown(chat)
        chat_json(chat)


SQL = (
    st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(max_size=20).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))
    | st.binary(max_size=20)
    | st.sampled_from(
        ["[]", "{}", "[[1, 2]]", "[" * 2000, '[["a", "b", 0, 1e999]]', '[[1e999, "fresh"]]', '{"prefilled": []}']
    )
)
COLUMNS = [
    "kind", "name", "text", "value", "reasoning", "reasoning_start", "reasoning_stop", "tokens", "content_start",
    "content_stop", "fields", "runs", "artifact", "stopped", "proof",
]  # fmt: skip


@QUICK
@given(column=st.sampled_from(COLUMNS), value=SQL)
def test_any_value_in_a_row_of_a_chat_gives_a_typed_error_or_a_chat(chats: Path, column: str, value: object) -> None:
    store = ChatStore(chats)
    try:
        store._db.execute("SAVEPOINT before")
        try:
            store._db.execute(f"UPDATE segments SET {column} = ? WHERE number = 1", (value,))
        except sqlite3.IntegrityError:
            return  # the schema does not allow it
        store._db.execute("RELEASE before")
        read_everything(store)
    except ChatStoreError:
        return
    finally:
        if store._db.in_transaction:
            store._db.execute("ROLLBACK")
        _restore(store)
        store.close()


@QUICK
@given(column=st.sampled_from(["title", "created", "updated", "params", "model_name", "parent_segments"]), value=SQL)
def test_any_value_in_the_head_of_a_chat_gives_a_typed_error_or_a_chat(chats: Path, column: str, value: object) -> None:
    store = ChatStore(chats)
    try:
        before = store._db.execute(f"SELECT {column} FROM chats").fetchone()
        try:
            store._db.execute(f"UPDATE chats SET {column} = ?", (value,))
        except sqlite3.IntegrityError:
            return
        try:
            read_everything(store)
        except ChatStoreError:
            return
        finally:
            store._db.execute(f"UPDATE chats SET {column} = ?", before)
    finally:
        store.close()


def _restore(store: ChatStore) -> None:
    columns = ", ".join(f"{column} = (SELECT {column} FROM segments WHERE number = 0)" for column in COLUMNS)
    store._db.execute(f"UPDATE segments SET {columns} WHERE number = 1")


def test_a_damaged_database_gives_a_typed_error_or_chats(chats: Path, tmp_path: Path, again: int) -> None:
    good, pick = chats.read_bytes(), random.Random(5 + again)
    path = tmp_path / "chats.sqlite"
    outcomes = set()
    for _ in range(60):
        for rest in tmp_path.iterdir():
            rest.unlink()
        data = good
        for _ in range(pick.choice([1, 20])):
            data = mutate(data, pick)
        path.write_bytes(data)
        try:
            store = ChatStore(path)
            try:
                read_everything(store)
                outcomes.add("read")
            finally:
                store.close()
        except ChatStoreError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_a_chat_that_descends_from_itself_is_listed_and_one_of_endless_tokens_is_refused(tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "chats.sqlite")
    user = Segment(Kind.USER, (1, 2, 3), "hello there", content_stop=3, runs=(Run(3, Freshness.FRESH),))
    for chat in ("0badcafe", "1badcafe"):
        store.save(chat, [user], "say", new=("model", "f" * 64, ChatParams()))
    store._db.execute("UPDATE chats SET parent = '1badcafe' WHERE id = '0badcafe'")
    store._db.execute("UPDATE chats SET parent = '0badcafe' WHERE id = '1badcafe'")
    assert {chat.id for chat, _ in as_tree(store.list())} == {"0badcafe", "1badcafe"}
    store._db.execute("UPDATE segments SET tokens = zeroblob(70000000)")
    with pytest.raises(ChatStoreError, match="damaged"):
        store.load("0badcafe")
    store.close()


@pytest.mark.parametrize(
    "crafted",
    [
        "CREATE TRIGGER t AFTER INSERT ON operations BEGIN DELETE FROM segments; END",
        "CREATE VIEW v AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x FROM r",
        "DROP TABLE texts; CREATE VIEW texts AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x FROM r) SELECT x FROM r",
        "PRAGMA user_version = 99",
    ],
)
def test_a_database_that_holds_code_or_is_newer_is_refused(tmp_path: Path, crafted: str) -> None:
    path = tmp_path / "chats.sqlite"
    ChatStore(path).close()
    db = sqlite3.connect(path)
    db.executescript(crafted)
    db.close()
    with pytest.raises(ChatStoreError, match=r"no database of chats|newer kvnotes"):
        ChatStore(path)


# -- chat templates ------------------------------------------------------------------------------------------------------------

BOMBS = [
    "{{ 'x' * 10**10 }}",
    "{{ [0] * 10**10 }}",
    "{{ 9**9**9 }}",
    "{{ 9**9**9**9 }}",
    "{{ 2 ** (2 ** 40) }}",
    "{% set x = 10**9 %}{{ ('%' ~ x ~ 'd') % 1 }}",
    "{{ '%0999999999d' % 1 }}",
    "{{ '{:>9999999999}'.format(1) }}",
    "{{ '%(a)*d' % 1 }}",
    "{{ '{:{}}'.format(1, 9999999999) }}",
    "{{ 'x'.center(10**10) }}",
    "{{ 'x'.ljust(10**10) }}",
    "{{ 'x'.zfill(10**10) }}",
    "{{ 'x' | center(10**10) }}",
    "{{ 'a\nb' | indent(10**10) }}",
    "{{ range(10**9) | list }}",
    "{% for x in range(90000) %}{% for y in range(90000) %}{% endfor %}{% endfor %}",
    "{% for x in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
    "{% set ns = namespace(x='x' * 1000) %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.__class__.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.system('touch /tmp/kvnotes-was-here') }}",
    "{{ raise_exception.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{{ strftime_now('%Y' * 10**9) }}",
    "{{ 'x\t'.expandtabs(10**10) }}",
    "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
    "{{ ('x' * 100000) | replace('x', 'y' * 100000) }}",
    "{{ ('x' * 1000000).join(['a'] * 1000000) }}",
    "{{ 'a' | wordwrap(1, true, 'x' * 10**8) }}",
]


@pytest.mark.parametrize("template", BOMBS)
def test_a_hostile_template_is_stopped_within_seconds_and_without_harm(template: str) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    try:
        text = TemplateRenderer(template, bos="", eos="").render([Message("user", "hi")])
    except TemplateError:
        text = ""
    assert time.monotonic() - began < 20
    assert len(text) <= 4 << 20
    assert not Path("/tmp/kvnotes-was-here").exists()
    assert "root:" not in text
    assert "function" not in text
    # KiB on Linux: a template may not take the machine's memory.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000


def test_what_honest_templates_do_is_allowed() -> None:
    template = (
        "{{ '*' * 3 }} {{ '** %s ** 12345' % 'a' }} {{ '%05.2f' % 1 }} {{ '{:>8} 123456'.format('b') }} {{ 2 ** 10 }} "
        "{{ messages[0].content | replace('h', 'H') | indent(4) | trim }} {{ [1] + [2] }} {{ 'x'.center(5) }} "
        "{{ ['a', 'b'] | join(', ') }} {{ 'a,b'.split(',') }} {{ {'a': 1} | tojson }}"
    )
    text = TemplateRenderer(template, bos="", eos="").render([Message("user", "hi")])
    assert text == ("*** ** a ** 12345 01.00        b 123456 1024 Hi [1, 2]   x   a, b ['a', 'b'] " + '{"a": 1}')
