"""The engine process dies or hangs in every kind of work: the chat is put together again and nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.process.child_engine import ChildEngine
from kvnotes_local.engine.process.supervision import Limits
from kvnotes_local.errors import EngineCrashed
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.segment import Kind
from kvnotes_local.notebook.store.chats import ChatStore
from kvnotes_local.notebook.store.export import chat_markdown
from kvnotes_local.notebook.stored_chat import ChatOptions, StoredChat, open_chat
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary
from tests.zoo import zoo_model

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
PARAMS = EngineParams(n_ctx=2048, n_threads=1, type_k=GGMLType.F32, type_v=GGMLType.F32)
LIMITS = Limits(beat_seconds=0.1, missed_beats=60)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> SkillLibrary:
    folder = tmp_path_factory.mktemp("skills")
    for name, text in {"lamp": "The lamp is {{colour|green}}. " * 8, "quay": "The quay is long. " * 8}.items():
        (folder / name).mkdir()
        (folder / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {name}\n---\n{text}\n")
    return SkillLibrary([folder])


@dataclass
class Bench:
    """An engine with a fault that ``load_gun`` makes strike, and stored chats on it."""

    engine: ChildEngine
    bullets: Path
    store: ChatStore
    library: SkillLibrary
    artifacts: ArtifactStore
    notices: list[str] = field(default_factory=list)

    def load_gun(self, times: int = 1) -> None:
        for number in range(times):
            (self.bullets / str(number)).touch()

    def chat(self, which: str = "new") -> StoredChat:
        compiler = SkillCompiler(self.engine, self.artifacts, n_leads=1)
        system = "You help. Budget: {{limit|900 euros}}." if which == "new" else None
        return open_chat(
            self.store,
            self.engine,
            which,
            ChatOptions(library=self.library, compiler=compiler, system=system, on_notice=self.notices.append),
        )

    def stored(self, chat: StoredChat) -> list[tuple[str, str]]:
        return [(segment.kind.value, segment.text) for segment in self.store.load(chat.id).segments]


Make = Callable[..., Bench]


@pytest.fixture
def bench(
    tmp_path: Path,
    zoo_directory: Path,
    measurements: Path,
    library: SkillLibrary,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Make]:
    engines: list[ChildEngine] = []

    def make(where: str, how: str = "SIGKILL", model: str = "llama") -> Bench:
        bullets = tmp_path / "bullets"
        bullets.mkdir()
        program = [sys.executable, "-m", "tests.faults.faulty_child", where, how, str(bullets)]
        engine = ChildEngine(
            zoo_model(model, zoo_directory),
            PARAMS,
            cache_dir=measurements,
            log_path=tmp_path / "llama.log",
            limits=LIMITS,
            program=program,
        )
        engines.append(engine)
        return Bench(
            engine, bullets, ChatStore(tmp_path / "chats.sqlite"), library, ArtifactStore(tmp_path / "artifacts")
        )

    yield make
    for engine in engines:
        engine.close()
    shutil.rmtree(measurements / "states", ignore_errors=True)


OPERATIONS: dict[str, tuple[str, Callable[[Notebook], object]]] = {
    "prefill": ("decode", lambda notebook: notebook.ask("How long is the quay?", max_tokens=4)),
    "splice": ("splice", lambda notebook: notebook.splice("quay")),
    "compile": ("compile", lambda notebook: notebook.splice("quay")),
    "edit": ("decode", lambda notebook: notebook.set("limit", "5 euros")),
    "auto edit": (
        "decode",
        lambda notebook: (notebook.set("limit", "5 euros", level=EditLevel.AUTO), notebook.ask("So?", max_tokens=4)),
    ),
    "drop": ("decode", lambda notebook: notebook.drop("lamp")),
    "read": ("decode", lambda notebook: notebook.read()),
}


def started(bench: Bench) -> StoredChat:
    chat = bench.chat()
    chat.notebook.splice("lamp")
    chat.notebook.say("Which colour is it?", "Green.")
    return chat


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_in_which_the_engine_is_killed_is_done_all_the_same(bench: Make, name: str) -> None:
    where, operation = OPERATIONS[name]
    one = bench(where)
    untouched, chat = started(one), started(one)
    operation(untouched.notebook)
    if name == "compile":
        one.artifacts.gc(max_bytes=0)
    one.load_gun()
    if name == "compile":
        # Compiling is not an operation on the chat: it fails by itself, and is done when asked for again.
        with pytest.raises(EngineCrashed, match="SIGKILL while compiling"):
            operation(chat.notebook)
        operation(chat.notebook)
    else:
        operation(chat.notebook)
        assert any("SIGKILL" in notice for notice in one.notices)
    assert not list(one.bullets.iterdir()), "the fault has to have struck"
    assert chat.notebook.tokens == untouched.notebook.tokens
    assert one.store.load(chat.id).segments == chat.notebook.segments
    chat.notebook.check()
    # The other chat on the same engine lost its rows, too, and goes on.
    for each in (chat, untouched):
        each.notebook.ask("And now?", max_tokens=3)
        each.notebook.check()


def test_an_answer_goes_on_where_it_was(bench: Make) -> None:
    one = bench("decode")
    chats = [started(one), started(one)]
    texts: list[list[str]] = [[], []]
    replies = []
    for number, chat in enumerate(chats):

        def listen(piece: str, number: int = number) -> None:
            texts[number].append(piece)
            if number == 1 and len(texts[1]) == 5:
                one.load_gun()

        replies.append(chat.notebook.ask("Tell me.", max_tokens=20, on_text=listen))
    assert "SIGKILL while answering" in one.notices[0]
    assert replies[1].segment.tokens == replies[0].segment.tokens
    assert "".join(texts[1]) == replies[1].text == replies[0].text
    assert not replies[1].segment.stopped
    chats[1].notebook.check()


def test_an_engine_that_dies_twice_in_an_operation_is_not_tried_a_third_time(bench: Make) -> None:
    one = bench("decode", "SIGSEGV")
    chat = started(one)
    before = one.stored(chat)
    one.load_gun(2)
    with pytest.raises(EngineCrashed, match="SIGSEGV while reading") as caught:
        chat.notebook.ask("How long is the quay?", max_tokens=4)
    assert caught.value.again
    assert "--no-fast-buffers, then --n-gpu-layers 0, then --n-ctx" not in str(caught.value)  # 2,048 is small already
    assert "--no-fast-buffers, then --n-gpu-layers 0" in str(caught.value)
    assert one.stored(chat) == before
    assert "Green." in chat_markdown(one.store.load(chat.id))
    assert chat.notebook.ask("How long is the quay?", max_tokens=4).text is not None
    chat.notebook.check()


@pytest.mark.parametrize("deaths", [{5: 2}, {5: 1, 8: 1}], ids=["in a row", "some tokens later"])
def test_what_was_said_before_the_second_death_is_kept(bench: Make, deaths: dict[int, int]) -> None:
    one = bench("decode", "SIGSEGV")
    chat = started(one)
    texts: list[str] = []

    def listen(piece: str) -> None:
        texts.append(piece)
        if len(texts) in deaths:
            one.load_gun(deaths[len(texts)])

    with pytest.raises(EngineCrashed, match="It did so twice") as caught:
        chat.notebook.ask("Tell me.", max_tokens=20, on_text=listen)
    answer = one.store.load(chat.id).segments[-1]
    assert (answer.kind, answer.stopped, answer.text) == (Kind.ASSISTANT, True, "".join(texts))
    assert caught.value.again
    chat.notebook.regenerate(max_tokens=4)
    chat.notebook.check()


def test_a_death_while_a_snapshot_is_written_costs_the_snapshot_only(bench: Make) -> None:
    one = bench("snapshot")
    chat = started(one)
    chat.notebook.ask("Hm?", max_tokens=3)
    one.load_gun()
    assert not chat.leave()
    again = one.chat(chat.id)
    assert again.restored is False
    assert again.notebook.segments[-1].text == chat.notebook.segments[-1].text
    again.notebook.check()


def test_a_snapshot_that_kills_the_engine_is_not_needed(bench: Make) -> None:
    one = bench("restore")
    chat = started(one)
    chat.notebook.ask("Hm?", max_tokens=3)
    assert chat.leave()
    one.load_gun()
    again = one.chat(chat.id)
    assert again.restored is False
    assert [s.text for s in again.notebook.segments] == [s.text for s in chat.notebook.segments]
    again.notebook.check()


def test_a_death_while_the_model_loads_is_an_error_that_says_so(
    zoo_directory: Path, measurements: Path, tmp_path: Path
) -> None:
    bullets = tmp_path / "bullets"
    bullets.mkdir()
    (bullets / "1").touch()
    program = [sys.executable, "-m", "tests.faults.faulty_child", "load", "SIGBUS", str(bullets)]
    with pytest.raises(EngineCrashed, match="SIGBUS while loading the model"):
        ChildEngine(zoo_model("llama", zoo_directory), PARAMS, cache_dir=measurements, program=program)


def test_an_engine_killed_between_two_operations_is_not_missed(bench: Make) -> None:
    one = bench("decode")
    chat = started(one)
    chat.notebook.ask("Hm?", max_tokens=3)
    assert one.engine.pid is not None
    os.kill(one.engine.pid, signal.SIGKILL)
    while one.engine.pid is not None:
        os.sched_yield()
    assert chat.notebook.undo()
    chat.notebook.check()
    assert chat.notebook.redo()
    chat.notebook.ask("And now?", max_tokens=3)
    chat.notebook.check()


@pytest.mark.parametrize(
    ("where", "how", "words"),
    [
        ("decode", "hang", "no progress"),
        ("decode", "SIGSTOP", "no sign of life"),
        ("speak", "babble", "not understood"),
    ],
)
def test_an_engine_that_hangs_or_talks_nonsense_is_ended_and_replaced(
    bench: Make, where: str, how: str, words: str
) -> None:
    one = bench(where, how)
    chat = started(one)
    one.load_gun()
    chat.notebook.ask("How long is the quay?", max_tokens=4)
    assert words in one.notices[0]
    chat.notebook.check()


def test_a_wedged_answer_and_a_wedged_compilation_are_noticed(bench: Make) -> None:
    one = bench("decode", "hang")
    chat = started(one)
    texts: list[str] = []

    def listen(piece: str) -> None:
        texts.append(piece)
        if len(texts) == 3:
            one.load_gun()

    reply = chat.notebook.ask("Tell me.", max_tokens=8, on_text=listen)
    assert "no progress" in one.notices[0]
    assert not reply.segment.stopped
    assert reply.text == "".join(texts)
    one.load_gun()
    with pytest.raises(EngineCrashed, match=r"no progress for .* while compiling"):
        chat.notebook.splice("quay")
    assert not list(one.bullets.iterdir())
    chat.notebook.check()


def test_what_the_engine_said_last_is_in_the_error_and_in_the_log(bench: Make, tmp_path: Path) -> None:
    one = bench("decode", "SIGABRT")
    chat = started(one)
    one.load_gun(2)
    with pytest.raises(EngineCrashed) as caught:
        chat.notebook.read()
    log = (tmp_path / "llama.log").read_text()
    assert any("Fatal Python error: Aborted" in line for line in caught.value.log)
    assert "Fatal Python error: Aborted" in log
    assert "llama" in log
    assert (tmp_path / "llama.log").stat().st_mode & 0o077 == 0
