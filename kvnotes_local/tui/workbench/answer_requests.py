"""Asking the model, and asking it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvnotes_local.errors import UsageError
from kvnotes_local.notebook.reply import Reply
from kvnotes_local.tui.news import AnswerEnded, AnswerText, ChatChanged, FieldChanged, QuestionAsked
from kvnotes_local.tui.workbench.desk import EngineDesk, EngineRequest


class _Answering(EngineRequest):
    """Shared by what makes the model answer."""

    def answer(self, desk: EngineDesk, question: str, at: int, ask: Callable[[Callable[[str], None]], Reply]) -> None:
        desk.tell(QuestionAsked(question, at))
        began = False

        def on_text(text: str) -> None:
            nonlocal began
            if not began:
                began = True
                desk.tell(ChatChanged(desk.view(), "ask"))
            desk.tell(AnswerText(text))
            if desk.stop.is_set():
                desk.model.engine.cancel()  # it was asked for between reading and answering

        try:
            reply = ask(on_text)
        except BaseException:
            desk.tell(ChatChanged(desk.view(), "not asked"))
            raise
        for edit in reply.edits:
            desk.tell(FieldChanged(edit))
        desk.tell(AnswerEnded(desk.view(), reply.proof, reply.segment.stopped))


@dataclass(frozen=True)
class Ask(_Answering):
    """Ask a question and let the model answer."""

    text: str

    @property
    def what(self) -> str:
        return "Answering"

    def run(self, desk: EngineDesk) -> None:
        chat = desk.chat
        self.answer(
            desk,
            self.text,
            len(chat.notebook.segments),
            lambda on_text: chat.notebook.ask(
                self.text,
                sampling=chat.params.sampling,
                max_tokens=chat.params.max_tokens,
                on_text=on_text,
                progress=desk.progress,
            ),
        )


@dataclass(frozen=True)
class Resend(_Answering):
    """Replace the question at segment ``at`` and what is behind it, and ask. ``text``: None for the same question again."""

    at: int
    text: str | None = None

    @property
    def what(self) -> str:
        return "Answering again"

    def run(self, desk: EngineDesk) -> None:
        notebook, params = desk.chat.notebook, desk.chat.params
        if not 0 <= self.at < len(notebook.segments):
            raise UsageError(f"The chat has no message {self.at}.")
        text = notebook.segments[self.at].text if self.text is None else self.text
        self.answer(
            desk,
            text,
            self.at,
            lambda on_text: notebook.edit_and_resend(
                self.at,
                text,
                sampling=params.sampling,
                max_tokens=params.max_tokens,
                on_text=on_text,
                progress=desk.progress,
            ),
        )
