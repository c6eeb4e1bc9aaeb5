"""What the workbench reports to the screens. Each is an immutable picture; screens never look into the engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from textual.message import Message

from kvnotes_local.contract.model_info import ModelInfo
from kvnotes_local.notebook.edit import EditResult
from kvnotes_local.notebook.proof import Proof
from kvnotes_local.tui.views import ChatView, ModelRow, SkillRow

if TYPE_CHECKING:
    from kvnotes_local.evaluation.bench_row import BenchRow
    from kvnotes_local.evaluation.gate import GateResult
    from kvnotes_local.evaluation.live_check import LiveCheck
    from kvnotes_local.evaluation.probe import Probe
    from kvnotes_local.models.memory import MemoryEstimate
    from kvnotes_local.notebook.store.records import Chat, ChatSummary, Found, RemovedChat
    from kvnotes_local.tui.workbench.crash_watch import SaferSetting


class News(Message, bubble=False):
    """Something that the workbench reports."""


@dataclass
class WorkBegan(News):
    """``what``: in words, as in "Answering". ``id``: of the request."""

    what: str
    id: int


@dataclass
class WorkProgressed(News):
    """``done`` of ``total``, in ``unit``."""

    done: int
    total: int
    unit: str = "tokens"


@dataclass
class WorkStep(News):
    """What of the work is done now, in words."""

    text: str


@dataclass
class WorkEnded(News):
    """The request is done, failed or stopped. ``ok``: it did what was asked. ``waiting``: requests behind it."""

    id: int
    ok: bool
    waiting: int = 0


@dataclass
class Notice(News):
    """A sentence that users should see."""

    text: str


@dataclass
class Failure(News):
    """``what`` was asked for could not be done; ``message`` says why and what to do next."""

    what: str
    message: str


@dataclass
class Busy(News):
    """Something cannot be done while the engine works; ``message`` says so."""

    message: str


@dataclass
class LineBegun(News):
    """A line for the composer, to be completed by the user at column ``at`` (None: at its end)."""

    text: str
    at: int | None


@dataclass
class SaferOffered(News):
    """The engine died twice in the same work: another setting may help."""

    setting: SaferSetting


@dataclass
class ModelReady(News):
    """A model is loaded."""

    info: ModelInfo


@dataclass
class ModelGone(News):
    """No model is loaded any more."""


@dataclass
class ChatOpened(News):
    """Another chat is on the desk. ``restored``: None for a new one, True where its saved state was loaded."""

    chat: ChatView
    restored: bool | None


@dataclass
class ChatChanged(News):
    """The chat on the desk changed by ``what``."""

    chat: ChatView
    what: str


@dataclass
class QuestionAsked(News):
    """A question is about to be read. ``at``: index of the segment that it becomes; what stood there or behind it goes."""

    text: str
    at: int


@dataclass
class AnswerText(News):
    """More of the answer that is being given."""

    text: str


@dataclass
class AnswerEnded(News):
    """The answer is complete or was stopped."""

    chat: ChatView
    proof: Proof
    stopped: bool


@dataclass
class FieldChanged(News):
    """A field has another value."""

    result: EditResult


@dataclass
class SkillsListed(News):
    """The skills as they are on disk. ``problems``: folders that could not be read."""

    skills: tuple[SkillRow, ...]
    problems: tuple[str, ...]


@dataclass
class ModelsListed(News):
    """The models that were found. ``problems``: places that could not be looked at."""

    models: tuple[ModelRow, ...]
    problems: tuple[str, ...]


@dataclass
class SkillsChanged(News):
    """Skills or what was compiled of them came or went: the listing is of yesterday."""


@dataclass
class SkillCompiled(SkillsChanged):
    """An artifact was made, or was there. ``seconds``: 0 for one that was there."""

    skill: str
    n_tokens: int
    n_bytes: int
    seconds: float


@dataclass
class ChatsListed(News):
    """Stored chats, last used first. ``query``: what was searched for, "" for all; ``found``: places with the words."""

    chats: tuple[ChatSummary, ...]
    query: str = ""
    found: tuple[Found, ...] = ()


@dataclass
class ChatPreviewed(News):
    """A stored chat, to be looked at."""

    chat: Chat


@dataclass
class ChatRemoved(News):
    """A chat was deleted; ``chat`` has all of it, so that it can be put back."""

    chat: RemovedChat


@dataclass
class LogRead(News):
    """The last lines of a log file."""

    path: Path
    lines: tuple[str, ...]


@dataclass
class MemoryEstimated(News):
    """What a model would take. ``problem``: why it cannot be loaded so."""

    path: Path
    estimate: MemoryEstimate | None
    problem: str = ""


@dataclass
class SkillVerified(SkillsChanged):
    """Splicing a skill was measured against reading it."""

    skill: str
    result: GateResult


@dataclass
class ChatVerified(News):
    """The open chat was compared with the same chat read afresh."""

    check: LiveCheck


@dataclass
class BenchDone(News):
    """Times to the first token were measured. ``model``: in words."""

    model: str
    rows: tuple[BenchRow, ...]


@dataclass
class ProbeDone(News):
    """It was found which rows carry a decision."""

    model: str
    probe: Probe
