"""Where a template has no turn for a system text, chats are still the template's own renderings, whatever is done to them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.contract.plan import Decode
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.segment import Kind
from kvnotes_local.notebook.store.chats import ChatStore
from kvnotes_local.notebook.stored_chat import ChatOptions, open_chat
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary
from tests.chat_format.oracle import Message, Oracle
from tests.chat_format.readings import ACKNOWLEDGMENT, JOIN, REQUEST
from tests.chat_format.template_parts import Bos, Closing, MidChat, Parts, Prompt, System, Trim
from tests.chat_format.templated_model import templated_model

TEMPLATES = {
    "in the first question": Parts(
        bos=Bos.EACH_QUESTION,
        system=System.FIRST_QUESTION,
        closing=Closing.INST,
        prompt=Prompt.NONE,
        alternates=True,
        mid_chat=MidChat.REFUSED,
    ),
    "refused": Parts(system=System.REFUSED, mid_chat=MidChat.REFUSED, trim=Trim.ALL, alternates=True),
    "in the last question": Parts(
        system=System.LAST_QUESTION, closing=Closing.INST, alternates=True, mid_chat=MidChat.REFUSED, spaced=False
    ),
    "dropped": Parts(system=System.DROPPED, mid_chat=MidChat.DROPPED),
}
SKILL = "The lamp is green."


@pytest.fixture(params=list(TEMPLATES))
def parts(request: pytest.FixtureRequest) -> Parts:
    return TEMPLATES[request.param]


@pytest.fixture
def engine(parts: Parts, tmp_path: Path) -> Iterator[LlamaEngine]:
    path = templated_model(tmp_path / "tiny.gguf", parts.template())
    params = EngineParams(n_ctx=2048, n_threads=1, type_k=GGMLType.F32, type_v=GGMLType.F32, flash_attn=False)
    with LlamaEngine(path, params, cache_dir=tmp_path / "cache") as engine:
        assert engine.info.chat_format.proven, engine.info.chat_format.problem
        yield engine


MakeNotebook = Callable[..., Notebook]


@pytest.fixture
def notebook(engine: LlamaEngine, tmp_path: Path) -> MakeNotebook:
    folder = tmp_path / "skills" / "lamp"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: lamp\ndescription: d\n---\n{SKILL}\n")
    library = SkillLibrary([folder.parent])
    compiler = SkillCompiler(engine, ArtifactStore(tmp_path / "artifacts"), n_leads=1)

    def make(**how: object) -> Notebook:
        return Notebook(engine, library=library, compiler=compiler, system="Be kind.", **how)  # type: ignore[arg-type]

    return make


def expected(engine: LlamaEngine, parts: Parts, notebook: Notebook) -> list[int]:
    """The template's own rendering of what the chat holds, its texts where the template has room for them."""
    messages: list[Message] = []
    alternates, in_template = parts.alternates, parts.system is System.FIRST_QUESTION
    system, *rest = notebook.segments
    pending = system.text
    if in_template:
        messages.append(Message("system", pending))
    prefix = "" if in_template else pending + JOIN
    # A system text that was parted from its question once stays a turn of its own.
    if ACKNOWLEDGMENT in engine.detokenize(system.tokens):
        messages += [Message("user", prefix + REQUEST), Message("assistant", ACKNOWLEDGMENT)]
        prefix = ""
    for segment in rest:
        if segment.kind is Kind.ASSISTANT:
            messages.append(Message("assistant", segment.text))
            continue
        messages.append(Message("user", prefix + segment.text))
        prefix = ""
        if segment.kind is not Kind.USER and alternates:
            messages.append(Message("assistant", ACKNOWLEDGMENT))
    oracle = Oracle(parts.template(), "<s>", "</s>")
    return engine.tokenize(oracle.render(*messages), special=True)


def assert_as_rendered(engine: LlamaEngine, parts: Parts, notebook: Notebook) -> None:
    notebook.read()
    notebook.check()
    assert engine.detokenize(notebook.tokens) == engine.detokenize(expected(engine, parts, notebook))
    assert notebook.tokens == expected(engine, parts, notebook)


@pytest.mark.parametrize("read", [True, False], ids=["read", "spliced"])
def test_a_skill_between_the_system_text_and_the_question_parts_them(
    engine: LlamaEngine, parts: Parts, notebook: MakeNotebook, read: bool
) -> None:
    chat = notebook()
    chat.say("Hello", "Good day")
    assert_as_rendered(engine, parts, chat)
    chat.splice("lamp", at=1, read=read)
    assert [segment.kind for segment in chat.segments][:3] == [Kind.SYSTEM, Kind.SKILL, Kind.USER]
    assert_as_rendered(engine, parts, chat)
    assert chat.undo()
    assert_as_rendered(engine, parts, chat)


def test_questions_keep_their_opening_when_the_system_text_before_them_changes(
    engine: LlamaEngine, parts: Parts, notebook: MakeNotebook
) -> None:
    chat = notebook()
    chat.say("Hello", "Good day")
    chat.say("How are you?", "Fine")
    chat.delete(1)
    chat.delete(1)
    assert_as_rendered(engine, parts, chat)
    chat.set_system("Be brief.")
    assert_as_rendered(engine, parts, chat)
    chat.edit(1, "What now?")
    assert_as_rendered(engine, parts, chat)
    chat.splice("lamp")
    chat.drop("lamp", clean=True)
    chat.say("Yes?", "No")
    assert_as_rendered(engine, parts, chat)


@pytest.mark.parametrize("seed", range(1))
def test_any_sequence_of_operations_leaves_the_templates_own_rendering(
    engine: LlamaEngine, parts: Parts, notebook: MakeNotebook, seed: int
) -> None:
    draw = random.Random(seed)
    chat = notebook()
    for _ in range(25):
        users = [index for index, segment in enumerate(chat.segments) if segment.kind is Kind.USER]
        what = draw.choice(["say", "splice", "drop", "turn away", "edit", "system", "undo", "redo", "fork"])
        if what == "say":
            chat.say(draw.choice(["Hello", "7 up", "\nWell?"]).strip(), draw.choice(["Yes", "No way"]))
        elif what == "splice" and "lamp" not in chat.skills:
            chat.splice("lamp", at=draw.choice([1, *users, None]), read=draw.random() < 0.5)
        elif what == "drop" and "lamp" in chat.skills:
            chat.drop("lamp", clean=True)
        elif what == "turn away" and users:
            index = draw.choice(users)
            chat.delete(index)
            chat.delete(index)  # its answer
        elif what == "edit" and users:
            chat.edit(draw.choice(users), draw.choice(["Really?", "And then"]))
        elif what == "system":
            chat.set_system(draw.choice(["Be brief.", "Be kind."]))
        elif what in {"undo", "redo"}:
            getattr(chat, what)()
        elif what == "fork":
            twin = chat.fork()
            twin.check()
            twin.close()
        chat.read()
        chat.check()
    for _ in range(2):  # an undo may have left half of an exchange
        if chat.segments[-1].kind is Kind.USER:
            chat.delete(len(chat.segments) - 1)
    if "lamp" in chat.skills:
        chat.drop("lamp", clean=True)
    chat.set_system("Be exact.")  # everything is read again
    assert_as_rendered(engine, parts, chat)
    logits = chat.ask("Last?", max_tokens=1, keep_logits=True).first_logits
    assert logits is not None
    asked = chat.tokens[: sum(one.n_tokens for one in chat.segments[:-1]) + chat.segments[-1].content_start]
    fresh = engine.new_sequence()
    engine.apply(fresh, [Decode(tuple(asked))])
    np.testing.assert_allclose(logits, engine.logits(fresh), rtol=0, atol=1e-4)


def test_a_system_text_without_a_place_is_said_and_never_lost(
    engine: LlamaEngine, parts: Parts, notebook: MakeNotebook
) -> None:
    notices: list[str] = []
    chat = notebook(on_notice=notices.append)
    chat.say("Hello", "Good day")
    assert "Be kind." in engine.detokenize(chat.tokens)
    assert bool(notices) is (parts.system is not System.FIRST_QUESTION)
    assert all("first question" in notice for notice in notices)


def test_a_stored_chat_goes_on_as_it_was(
    engine: LlamaEngine, parts: Parts, notebook: MakeNotebook, tmp_path: Path
) -> None:
    store = ChatStore(tmp_path / "chats.sqlite")
    stored = open_chat(store, engine, "new", ChatOptions(system="Be kind."))
    stored.notebook.say("Hello", "Good day")
    stored.notebook.read()
    assert stored.leave()
    again = open_chat(store, engine, stored.id).notebook
    again.say("Still there?", "Yes")
    assert_as_rendered(engine, parts, again)
