"""How a model's turns open and close; turns are put together from these pieces and history is never rendered again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

COMPILE_DATE = datetime(2026, 1, 17, 9, 41, 53)
"""The date that templates print while skills are compiled: a fixed one, so that artifacts do not go stale overnight."""

SYSTEM_REQUEST, ACKNOWLEDGMENT = "Please keep to this in our chat.", "Understood."
"""What the user and the model say where a template wants questions and answers in turn: the acknowledgment closes a user turn
that holds a skill; both close a system text that the template puts into the first question."""


class FormatSource(StrEnum):
    """Where the pieces come from: the model's own template, or our plain labels."""

    TEMPLATE = "template"
    PLAIN = "plain"


class SystemPlace(StrEnum):
    """Where the model's template puts a system text: TURN, a turn of its own in front; NONE: it refuses or drops it."""

    TURN = "turn"
    FIRST_QUESTION = "in first question"
    LAST_QUESTION = "in last question"
    NONE = "none"


class SkillPlace(StrEnum):
    """What a skill's turn is. ACKNOWLEDGED: a user turn with a short answer, for templates that want turns to alternate."""

    SYSTEM_TURN = "system turn"
    USER_TURN = "user turn"
    ACKNOWLEDGED = "user turn with a short answer"


class Trim(StrEnum):
    """White space that a template takes off a message: on both sides, at its start or end, of any kind or line feeds only."""

    NONE = "none"
    BOTH = "both"
    START = "start"
    END = "end"
    LINES = "lines"
    LINES_START = "lines at start"
    LINES_END = "lines at end"

    def __call__(self, text: str) -> str:
        """The text as the template shows it."""
        lines = "\n" if self in {Trim.LINES, Trim.LINES_START, Trim.LINES_END} else None
        if self in {Trim.BOTH, Trim.START, Trim.LINES, Trim.LINES_START}:
            text = text.lstrip(lines)
        if self in {Trim.BOTH, Trim.END, Trim.LINES, Trim.LINES_END}:
            text = text.rstrip(lines)
        return text


@dataclass(frozen=True)
class Wrapper:
    """Text around the content of a turn, and what the template trims off a content that comes from outside."""

    open: str
    close: str
    trim: Trim = Trim.NONE


@dataclass(frozen=True)
class Reasoning:
    """Texts around what the model thinks before it answers. ``leaves``: the template leaves the thoughts of finished turns
    out."""

    open: str
    close: str
    leaves: bool


@dataclass(frozen=True)
class DatedTexts:
    """The texts of a format that hold a date."""

    head: str
    empty_head: str
    system_open: str
    system_close: str
    default_system: str | None


@dataclass(frozen=True)
class ChatFormat:
    """Pieces from which every turn of a chat is made.

    ``head``: what stands before the first user turn when no system text is given: BOS, mostly, and the system turn that the
    template adds by itself, whose text is ``default_system`` (None for no such turn; an empty one is ""). ``empty_head``: the
    same for an empty system text.
    ``system``: around a system text; it opens with the beginning of the chat. ``system_opens_question``: it closes inside the
    first user turn, which then opens with ``question_open`` only and is trimmed by ``question_trim``. ``system_place``: where the
    template puts a system text; where it has no place for it, or one that moves, ``system`` is in the first question.
    ``proven``: chats put together from these pieces were compared with the template's own rendering, token by token.
    ``problem``: why the format is plain although the model has a template.
    ``end_markers``: special tokens that end an answer, beside the vocabulary's own; ``stop_texts``: plain texts that do.
    ``date_patterns``: what the template prints of the date (``strftime``); the pieces hold COMPILE_DATE, ``on`` gives them
    another. ``computes_date``: it does more with the date than to print it, so ``today`` has its texts for the date of loading.
    """

    head: str
    empty_head: str
    default_system: str | None
    system: Wrapper
    system_place: SystemPlace
    system_opens_question: bool
    question_open: str
    question_trim: Trim
    user: Wrapper
    assistant: Wrapper
    generation_open: str
    skill: Wrapper
    skill_place: SkillPlace
    source: FormatSource
    proven: bool = False
    problem: str | None = None
    reasoning: Reasoning | None = None
    end_markers: tuple[str, ...] = ()
    stop_texts: tuple[str, ...] = ()
    date_patterns: tuple[str, ...] = ()
    computes_date: bool = False
    today: DatedTexts | None = field(default=None, compare=False)

    @property
    def system_mid_chat(self) -> bool:
        """May a system turn stand between two others?"""
        return self.skill_place is SkillPlace.SYSTEM_TURN

    @property
    def system_is_placed(self) -> bool:
        """Does the template have no place, or none that stays, for a system text, so that we chose one?"""
        return self.system_place in {SystemPlace.LAST_QUESTION, SystemPlace.NONE}

    @property
    def answer_open(self) -> str:
        """What the model writes between the prompt for an answer and the answer, where it does not think."""
        opening = self.assistant.open
        return opening[len(self.generation_open) :] if opening.startswith(self.generation_open) else ""

    @property
    def opens_reasoning(self) -> bool:
        """Does the prompt for an answer open the model's thoughts already?"""
        if self.reasoning is None:
            return False
        marker = self.reasoning.open.strip()  # empty where the model thinks without being told
        return not marker or self.generation_open.rstrip().endswith(marker)

    def on(self, date: datetime) -> ChatFormat:
        """The format with another date in the texts that hold one."""
        if self.today is None and not self.date_patterns:
            return self
        texts = self.today or self.texts_on(date)
        return replace(
            self,
            head=texts.head,
            empty_head=texts.empty_head,
            default_system=texts.default_system,
            system=replace(self.system, open=texts.system_open, close=texts.system_close),
        )

    def texts_on(self, date: datetime) -> DatedTexts:
        """The texts that may hold a date, with this one."""
        default = self.default_system
        return DatedTexts(
            self._dated(self.head, date),
            self._dated(self.empty_head, date),
            self._dated(self.system.open, date),
            self._dated(self.system.close, date),
            None if default is None else self._dated(default, date),
        )

    def _dated(self, text: str, date: datetime) -> str:
        for pattern in self.date_patterns:
            text = text.replace(COMPILE_DATE.strftime(pattern), date.strftime(pattern))
        return text


PLAIN_FORMAT = ChatFormat(
    head="",
    empty_head="",
    default_system=None,
    system=Wrapper("", "\n\n"),
    system_place=SystemPlace.TURN,
    system_opens_question=False,
    question_open="",
    question_trim=Trim.NONE,
    user=Wrapper("User:\n", "\n\n"),
    assistant=Wrapper("Assistant:\n", "\n\n"),
    generation_open="Assistant:\n",
    skill=Wrapper("", "\n\n"),
    skill_place=SkillPlace.SYSTEM_TURN,
    source=FormatSource.PLAIN,
    stop_texts=("\nUser:", "\nAssistant:"),
)
"""For models without a template: labels on lines of their own, an empty line after each turn; system and skill texts stand
without a label. The model has no token that ends a turn, so a label that it writes itself ends the answer."""
