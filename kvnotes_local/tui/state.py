"""What the screens know: one immutable picture that each report turns into the next."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvnotes_local.contract.model_info import ModelInfo
from kvnotes_local.notebook.proof import Proof
from kvnotes_local.tui.news import (
    AnswerEnded,
    AnswerText,
    Busy,
    ChatChanged,
    ChatOpened,
    Failure,
    ModelGone,
    ModelReady,
    ModelsListed,
    News,
    Notice,
    QuestionAsked,
    SaferOffered,
    SkillsListed,
    WorkBegan,
    WorkEnded,
    WorkProgressed,
    WorkStep,
)
from kvnotes_local.tui.views import ChatView, ModelRow, SkillRow
from kvnotes_local.tui.workbench.crash_watch import SaferSetting


@dataclass(frozen=True)
class Work:
    """What the engine is doing: ``done`` of ``total`` units, 0 as long as nothing is known of it; ``step``: a part, in words."""

    id: int
    what: str
    done: int = 0
    total: int = 0
    unit: str = "tokens"
    step: str = ""


@dataclass(frozen=True)
class Said:
    """The last thing that users were told. ``failed``: something could not be done. ``while_working``: it is of no interest
    once the engine is idle."""

    text: str = ""
    failed: bool = False
    while_working: bool = False


@dataclass(frozen=True)
class SessionState:
    """``proof``: of the last answer. ``answering``: an answer is being given. ``last_chat``: id of the last stored one that
    was open. ``models``: None as long as nobody has looked. ``safer``: a setting to try, since the engine died twice."""

    info: ModelInfo | None = None
    chat: ChatView | None = None
    work: Work | None = None
    proof: Proof | None = None
    answering: bool = False
    said: Said = Said()
    last_chat: str | None = None
    skills: tuple[SkillRow, ...] = ()
    models: tuple[ModelRow, ...] | None = None
    safer: SaferSetting | None = None

    def after(self, news: News) -> SessionState:
        """The picture once ``news`` has come in."""
        match news:
            case WorkBegan():
                return replace(self, work=Work(news.id, news.what), said=Said())
            case WorkProgressed() if self.work is not None:
                work = replace(self.work, done=news.done, total=news.total, unit=news.unit)
                return replace(self, work=work)
            case WorkStep() if self.work is not None:
                return replace(self, work=replace(self.work, step=news.text, done=0, total=0))
            case WorkEnded() if self.work is not None and self.work.id == news.id:
                said = Said() if self.said.while_working else self.said
                return replace(self, work=None, answering=False, said=said)
            case SaferOffered():
                return replace(self, safer=news.setting)
            case ModelReady():
                return replace(self, info=news.info, safer=None)
            case ModelGone():
                return replace(self, info=None, chat=None, proof=None)
            case ChatOpened():
                return replace(self, proof=_last_proof(news.chat))._on_desk(news.chat)
            case ChatChanged():
                return self._on_desk(news.chat)
            case QuestionAsked():
                return replace(self, answering=True)
            case AnswerText() if self.work is not None and self.work.total:
                return replace(self, work=replace(self.work, done=0, total=0))
            case AnswerEnded():
                return replace(self, proof=news.proof, answering=False, safer=None)._on_desk(news.chat)
            case SkillsListed():
                return replace(self, skills=news.skills)
            case ModelsListed():
                return replace(self, models=news.models)
            case Notice():
                return replace(self, said=Said(news.text))
            case Busy():
                return replace(self, said=Said(news.message, failed=True, while_working=True))
            case Failure():
                text = f"{news.what} failed: {news.message}" if news.what else news.message
                return replace(self, said=Said(text, failed=True))
            case _:
                return self

    def _on_desk(self, chat: ChatView) -> SessionState:
        return replace(self, chat=chat, last_chat=chat.id if chat.is_stored else self.last_chat)


def _last_proof(chat: ChatView) -> Proof | None:
    return next((segment.proof for segment in reversed(chat.segments) if segment.proof is not None), None)
