"""Carries out every request of the file thread, one after the other, in a process of its own, and says after which of them
llama.cpp was loaded: ``python -m tests.tui.file_thread HOME MODEL``, the answer in JSON on the last line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

from kvnotes_local.artifacts.meta import text_sha256
from kvnotes_local.artifacts.writer import write_artifact
from kvnotes_local.chat_format.turns import FieldSpan
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.errors import EngineCrashed
from kvnotes_local.notebook.segment import Freshness, Kind, Run, Segment
from kvnotes_local.notebook.store.params import ChatParams
from kvnotes_local.session.places import Places
from kvnotes_local.tui.last_session import LastSession
from kvnotes_local.tui.news import ChatRemoved, News
from kvnotes_local.tui.workbench.crash_watch import CrashWatch
from kvnotes_local.tui.workbench.desk import FileDesk, FileRequest
from kvnotes_local.tui.workbench.file_requests import EstimateMemory, ListModels, ListSkills, ReadLog, SaveSession
from kvnotes_local.tui.workbench.library_requests import ExportSkill, ImportSkill, MakeRoom, NewSkill, RemoveCompiled
from kvnotes_local.tui.workbench.store_requests import (
    ExportChat,
    ListChats,
    PreviewChat,
    PutChatBack,
    RemoveChat,
    RenameChat,
)
from tests.artifacts.samples import LAYOUTS, META, random_rows
from tests.skills.skill_samples import simple_skill

CHAT = "0badcafe"


def signs_of_llama() -> list[str]:
    """Modules of llama.cpp's binding in this process, and its libraries among those that are mapped (Linux)."""
    modules = [name for name in sys.modules if name.partition(".")[0] == "llama_cpp"]
    maps = Path("/proc/self/maps")
    mapped = maps.read_text().splitlines() if maps.exists() else []
    return modules + [line for line in mapped if "libllama" in line or "libggml" in line]


def requests(desk: FileDesk, heard: list[News], home: Path, model: Path) -> Iterator[FileRequest]:
    """Each kind at least once, on things that are there."""
    user = Segment(Kind.USER, (1, 2), "hello there", content_stop=2, runs=(Run(2, Freshness.FRESH),))
    desk.store.save(CHAT, [user], "say", new=("model", "f" * 64, ChatParams()))
    simple_skill(home / "skills" / "refunds", "Refunds within {{window|30 days}}.")
    meta = replace(
        META,
        skill="refunds",
        skill_sha256=text_sha256("Refunds within 30 days."),
        fields=(FieldSpan("window", "30 days", 2, 4),),
        llama_cpp_version=version("llama-cpp-python"),
    )
    write_artifact(
        desk.places.artifact_store().path(meta.key, meta.skill, meta.model_fingerprint),
        meta,
        random_rows(*LAYOUTS["plain"]),
    )

    yield ListSkills()
    yield NewSkill("begun")
    yield ExportSkill("refunds", None, home / "refunds.kvnotes.zip")
    yield RemoveCompiled("refunds")
    yield ImportSkill(home / "refunds.kvnotes.zip")
    yield MakeRoom(1 << 20, timedelta(days=1))
    yield ListModels()
    yield EstimateMemory(model, EngineParams())
    yield EstimateMemory(model, EngineParams(n_gpu_layers=0))
    yield ReadLog(home / "kvnotes.log")
    yield SaveSession(LastSession(model))
    yield ListChats()
    yield ListChats("hello")
    yield PreviewChat(CHAT)
    yield RenameChat(CHAT, "Another title")
    yield ExportChat(CHAT, home / "chat.md")
    yield RemoveChat(CHAT)
    yield PutChatBack(next(news.chat for news in heard if isinstance(news, ChatRemoved)))


def main(home: Path, model: Path) -> None:
    places = Places(home / "cache", home / "data", home, home, (home / "skills",), (model.parent,), only_given=True)
    heard: list[News] = []
    desk = FileDesk(places, heard.append)
    found = {"before anything": signs_of_llama()}
    done = set()
    for request in requests(desk, heard, home, model):
        request.run(desk)
        done.add(type(request))
        found[f"{type(request).__name__}: {request.what}"] = signs_of_llama()
    watch = CrashWatch()
    watch.asked = model, EngineParams(extra_buffers=False)
    watch.after("Answering", EngineCrashed("It died.", operation="apply", again=True), n_ctx=4096, n_held=0)
    found["after a second crash"] = signs_of_llama()
    left_out = sorted(kind.__name__ for kind in set(FileRequest.__subclasses__()) - done)
    sys.stdout.write(json.dumps({"found": found, "left_out": left_out}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
