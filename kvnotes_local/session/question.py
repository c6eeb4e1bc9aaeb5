"""One question to a chat, with skills and field values in front of it: all of it is checked before the chat changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace

from kvnotes_local.contract.protocol import Progress
from kvnotes_local.errors import Interrupted, KvnotesError, UsageError
from kvnotes_local.notebook.edit import EditLevel, EditResult
from kvnotes_local.notebook.listening import OnText
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.on_full import OnFull
from kvnotes_local.notebook.reply import Reply
from kvnotes_local.notebook.store.chats import ChatChangedError, ChatStore
from kvnotes_local.notebook.store.params import ChatParams
from kvnotes_local.notebook.stored_chat import NOT_SAVED, ChatOptions, StoredChat, open_chat
from kvnotes_local.session.session import Session
from kvnotes_local.skills.library import SkillLibrary
from kvnotes_local.skills.skill import Skill

SkillProgress = Callable[[str], AbstractContextManager[Progress]]
"""Shows how far a skill is; given its name."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """``skills``: spliced first, in this order. ``values``: of fields; where the chat has the field already, it is set at
    ``level``. ``read_skills``: let the model read skills instead. ``repair``: tokens at the seam, None for what was measured.
    ``splice_anyway``: also what was measured to be worse than reading it."""

    text: str
    skills: Sequence[str] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    level: EditLevel = EditLevel.FIELD_ERRATUM
    read_skills: bool = False
    repair: int | None = None
    splice_anyway: bool = False

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise UsageError("The question is empty.")


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How answers are drawn from now on; None for what the chat says."""

    temperature: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    on_full: OnFull | None = None

    def applied_to(self, params: ChatParams) -> ChatParams:
        sampling = params.sampling
        if self.temperature is not None:
            sampling = replace(sampling, temperature=self.temperature)
        if self.seed is not None:
            sampling = replace(sampling, seed=self.seed)
        return replace(
            params,
            sampling=sampling,
            max_tokens=self.max_tokens or params.max_tokens,
            on_full=self.on_full or params.on_full,
        )


@dataclass(frozen=True)
class OpenedChat:
    """``stored``: None for a chat that nobody keeps."""

    notebook: Notebook
    params: ChatParams
    stored: StoredChat | None = None


@dataclass(frozen=True)
class Answer:
    """``edits``: of fields, in the order in which they were made; those that waited for the question last."""

    reply: Reply
    edits: tuple[EditResult, ...]


def open_for_question(
    session: Session, chat: str | None, drawing: Drawing, options: ChatOptions, *, store: Callable[[], ChatStore]
) -> OpenedChat:
    """The stored chat with this id, a new one to be stored ("new"), or one that nobody keeps (None). Raises ChatStoreError,
    UsageError."""
    options = replace(options, on_full=drawing.on_full)
    if chat is None:
        params = drawing.applied_to(ChatParams())
        return OpenedChat(options.notebook(session.engine), params)
    stored = open_chat(store(), session.engine, chat, options)
    stored.change_params(drawing.applied_to(stored.params))
    return OpenedChat(stored.notebook, stored.params, stored)


def ask(
    question: Question, chat: OpenedChat, session: Session, *, on_text: OnText, skill_progress: SkillProgress
) -> Answer:
    """Splice, set and ask. What is refused does not leave half of a chat behind: names and texts are looked at first.

    Raises UsageError for a field that neither chat nor skills have, SkillError, EngineError.
    """
    notebook = chat.notebook
    known = set(notebook.fields)
    skills = _checked(question, notebook, session.library)
    new_values = {name: value for name, value in question.values.items() if name not in known}
    for skill in skills:
        with skill_progress(skill.name) as progress:
            notebook.splice(
                skill.name,
                repair=question.repair,
                values=new_values,
                read=question.read_skills,
                heed_verdict=not question.splice_anyway,
                progress=progress,
            )
    edits = [
        notebook.set(name, value, level=question.level)
        for name, value in question.values.items()
        if name in known and notebook.fields[name] != value
    ]
    reply = notebook.ask(
        question.text, sampling=chat.params.sampling, max_tokens=chat.params.max_tokens, on_text=on_text
    )
    settled = (edit for edit in edits if edit.level is not EditLevel.AUTO)
    return Answer(reply, (*settled, *reply.edits))


def _checked(question: Question, notebook: Notebook, library: SkillLibrary) -> list[Skill]:
    """The skills that are asked for."""
    for text in (question.text, *question.values.values()):
        notebook.engine.tokenize(text)
    skills = [library.get(name) for name in question.skills]
    fields = list(dict.fromkeys([*notebook.fields, *(name for skill in skills for name in skill.fields)]))
    unknown = [name for name in question.values if name not in fields]
    if unknown:
        raise UsageError(f"There is no field {unknown[0]!r}. The fields are: {', '.join(fields) or 'none'}.")
    return skills


@contextmanager
def left_in_order(chat: OpenedChat, note: Callable[[str], None]) -> Iterator[None]:
    """Save the chat's state at the end, also where an error, a signal or a reader that has gone ends the work."""
    stored = chat.stored
    try:
        yield
    except (ChatChangedError, Interrupted):  # the state would be of an older chat; nobody wants to wait
        raise
    except BaseException:
        if stored is not None:
            with suppress(KvnotesError):
                stored.leave()
        raise
    if stored is not None and not stored.leave():
        note(NOT_SAVED)
