"""A scripted session that can be killed at any moment and goes on where the stored chat says it was.

``python -m tests.faults.scripted_session MODEL SKILLS`` imports everything once, then forks a session for each line
``DATA_FOLDER`` on stdin; the session says on stdout ``pid N``, ``begin STEP``, ``done STEP`` and at last ``end``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.kv.layout import GGMLType
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.segment import Kind
from kvnotes_local.notebook.store.chats import ChatStore
from kvnotes_local.notebook.stored_chat import ChatOptions, StoredChat, open_chat
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary

N_TOKENS = 12


@dataclass(frozen=True)
class Step:
    """``what``: the operation under which the store knows it, or the question."""

    what: str
    play: Callable[[Notebook], object]
    is_question: bool = False


def question(text: str) -> Step:
    return Step(text, lambda notebook: notebook.ask(text, max_tokens=N_TOKENS), is_question=True)


STEPS = (
    Step("splice lamp", lambda notebook: notebook.splice("lamp")),
    question("Which colour?"),
    Step("set limit", lambda notebook: notebook.set("limit", "5 euros", level=EditLevel.FULL)),
    Step("say", lambda notebook: notebook.say("It is late.", "So it is.")),
    question("How late?"),
    Step("splice quay", lambda notebook: notebook.splice("quay")),
    Step("drop lamp", lambda notebook: notebook.drop("lamp", clean=True)),
    question("And the quay?"),
)


def say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


def is_done(step: Step, notebook: Notebook, operations: list[str]) -> bool:
    if not step.is_question:
        return step.what in operations
    return any(
        user.text == step.what and answer.kind is Kind.ASSISTANT and not answer.stopped
        for user, answer in zip(notebook.segments, notebook.segments[1:], strict=False)
    )


def play(model: Path, skills: Path, folder: Path) -> None:
    """The rest of the session."""
    params = EngineParams(n_ctx=2048, n_threads=1, type_k=GGMLType.F32, type_v=GGMLType.F32)
    engine = LlamaEngine(model, params, cache_dir=folder / "cache")
    store = ChatStore(folder / "chats.sqlite")
    library = SkillLibrary([skills])
    compiler = SkillCompiler(engine, ArtifactStore(folder / "artifacts"), n_leads=1)

    def opened() -> StoredChat:
        there = store.list()
        which = there[0].id if there else "new"
        system = None if there else "You help. Budget: {{limit|900 euros}}."
        return open_chat(store, engine, which, ChatOptions(library=library, compiler=compiler, system=system))

    chat = opened()
    for step in STEPS:
        notebook = chat.notebook
        operations = store.operations(chat.id) if store.list() else []
        if is_done(step, notebook, operations):
            continue
        say(f"begin {step.what}")
        if len(notebook.segments) > 1 and notebook.segments[-2].text == step.what:
            notebook.regenerate(max_tokens=N_TOKENS)
        else:
            step.play(notebook)
        notebook.check()
        say(f"done {step.what}")
        if step.what == "splice quay":
            chat.leave()
            chat = opened()
    chat.leave()
    say("end")


def main() -> None:
    model, skills = map(Path, sys.argv[1:])
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            say(f"pid {os.getpid()}")
            try:
                play(model, skills, Path(line.strip()))
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        say("gone")


if __name__ == "__main__":
    main()
