"""What a chat may be read as: the text that a template renders for it, or for the nearest chat that the template accepts.

A text that the template refuses, drops or moves has to go elsewhere: a system text into the first question, a skill into a turn
of the user, with a short answer where turns have to alternate. What the model wrote stays as it was written, behind the
generation prompt or behind what the template's history has there; reasoning that the template leaves out of earlier turns goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product

from tests.chat_format.chats import Chat, Kind, Turn
from tests.chat_format.oracle import Message, Oracle, Refused

JOIN = "\n\n"
"""Between a system text that found no turn of its own and the question that it went into; no white space beside it."""

REQUEST, ACKNOWLEDGMENT = "Please keep to this in our chat.", "Understood."
"""What stands between a system text in the first question and a skill, and behind a skill where turns have to alternate."""


class Place(Enum):
    """Where a text stands that could stand elsewhere, too."""

    SYSTEM_TURN = "system turn"
    FIRST_QUESTION = "system in first question"
    SKILL_AS_SYSTEM = "skill as system turn"
    SKILL_AS_USER = "skill as user turn"
    SKILL_ACKNOWLEDGED = "skill as user turn with a short answer"
    REASONING_STAYS = "reasoning stays"


@dataclass(frozen=True)
class Reading:
    """A text with the places in it. It is read in ``runs``: what the model wrote has its own tokens and merges with nothing."""

    runs: tuple[str, ...]
    places: frozenset[Place]

    @property
    def text(self) -> str:
        return "".join(self.runs)


class NoReading(Exception):
    """The template renders neither the chat nor anything near it."""


def readings(oracle: Oracle, chat: Chat) -> list[Reading]:
    """All admissible readings of a chat, the nearest first. Raises NoReading."""
    found: dict[tuple[str, ...], Reading] = {}
    for turns, places in _arrangements(chat):
        if Place.FIRST_QUESTION in places and any(Place.FIRST_QUESTION not in one.places for one in found.values()):
            break  # a system text stands in the first question only where the template has no better place
        for runs, stays in _runs(oracle, turns, chat.generate):
            where = places | ({Place.REASONING_STAYS} if stays else set())
            found.setdefault(runs, Reading(runs, frozenset(where)))
    if not found:
        raise NoReading(f"{chat.name}: refused, or a text is lost, wherever it is put")
    return list(found.values())


def _arrangements(chat: Chat) -> Iterator[tuple[tuple[Turn, ...], frozenset[Place]]]:
    """The chat without skills, the nearest arrangement first."""
    has_system = any(turn.kind is Kind.SYSTEM for turn in chat.turns)
    has_skill = any(turn.kind is Kind.SKILL for turn in chat.turns)
    skills = (Place.SKILL_AS_SYSTEM, Place.SKILL_AS_USER, Place.SKILL_ACKNOWLEDGED) if has_skill else (None,)
    for system in (Place.SYSTEM_TURN, Place.FIRST_QUESTION) if has_system else (None,):
        for skill in skills:
            places = frozenset(place for place in (system, skill) if place is not None)
            if system is not Place.FIRST_QUESTION:
                yield _with_skills(chat.turns, skill), places
            if has_system:
                turns = _with_skills(_with_request(chat.turns), skill)
                if system is Place.FIRST_QUESTION:
                    yield _joined(turns), places
                else:  # the template itself may put the system text into the first question: no white space where they meet
                    yield turns, places
                    yield _trimmed_where_they_meet(turns), places


def _with_request(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """A system text in the first question gets a question and an answer of its own where a skill follows."""
    if turns[1].kind is not Kind.SKILL:
        return turns
    return (turns[0], Turn(Kind.USER, REQUEST), Turn(Kind.ASSISTANT, ACKNOWLEDGMENT), *turns[1:])


def _with_skills(turns: tuple[Turn, ...], place: Place | None) -> tuple[Turn, ...]:
    """Turns in which skills are turns of another kind."""
    kind = Kind.SYSTEM if place is Place.SKILL_AS_SYSTEM else Kind.USER
    answer = (Turn(Kind.ASSISTANT, ACKNOWLEDGMENT),) if place is Place.SKILL_ACKNOWLEDGED else ()
    done: list[Turn] = []
    for turn in turns:
        done += (replace(turn, kind=kind), *answer) if turn.kind is Kind.SKILL else (turn,)
    return tuple(done)


def _trimmed_where_they_meet(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    system, question, *rest = turns
    return (replace(system, text=system.text.strip()), replace(question, text=question.text.strip()), *rest)


def _joined(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """The system text in front of the question behind it."""
    system, question, *rest = turns
    return (replace(question, text=system.text.strip() + JOIN + question.text.strip()), *rest)


def _runs(oracle: Oracle, turns: tuple[Turn, ...], generate: bool) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Renderings with the answers as the model wrote them; and whether reasoning stays that the template would leave out."""
    messages = [_message(turn) for turn in turns]
    with suppress(Refused, _Lost):
        whole = oracle.render(*messages, generate=generate)
        _check_order(whole, turns)
        if all(turn.kind is not Kind.ANSWER for turn in turns):
            yield (whole,), False
            return
        rules = AnswerRules(oracle)
        if any(turn.reasoning for turn in turns) and rules.strips:
            for given in rules.stripped_forms(turns):
                with suppress(Refused, _Lost):
                    text = oracle.render(*given, generate=generate)
                    _check_order(text, turns)
                    for runs in _as_written(oracle, turns, given, text, rules):
                        yield runs, False
        stays = rules.strips and any(turn.reasoning for turn in turns)
        for runs in _as_written(oracle, turns, messages, whole, rules, keep=True):
            yield runs, stays


class _Lost(Exception):
    """A text is not where it belongs in the rendering."""


def _message(turn: Turn) -> Message:
    """A turn as the template gets it. White space around an answer is in what the model wrote, and put in later."""
    if turn.kind is Kind.ANSWER:
        return Message("assistant", turn.text.strip())
    return Message(turn.kind.value, turn.text)


def _check_order(text: str, turns: tuple[Turn, ...]) -> None:
    """Raise _Lost unless every text stands in the rendering, once, one behind the other."""
    at = 0
    for turn in turns:
        core = turn.text.strip()
        found = text.find(core, at)
        if found < 0 or (text.count(core) != 1 and core != ACKNOWLEDGMENT):
            raise _Lost(core)
        at = found + len(core)


def _as_written(
    oracle: Oracle,
    turns: tuple[Turn, ...],
    messages: list[Message],
    whole: str,
    rules: AnswerRules,
    *,
    keep: bool = False,
) -> Iterator[tuple[str, ...]]:
    """``whole`` with every answer as the model wrote it, a run of its own: behind what the template's history has in front of it,
    or behind the prompt. ``keep``: its reasoning, too."""
    answers = [index for index, turn in enumerate(turns) if turn.kind is Kind.ANSWER]
    for choice in product((False, True), repeat=len(answers)):
        behind_prompt = dict(zip(answers, choice, strict=True))
        runs, rest = [""], whole
        for index, turn in enumerate(turns):
            core = turn.text.strip()
            head, _, rest = rest.partition(core)
            if turn.kind is not Kind.ANSWER:
                runs[-1] += head + core
                continue
            thinks = turn.reasoning is not None and rules.thoughts is not None
            if behind_prompt[index] or (thinks and keep):
                prompt = oracle.render(*messages[:index], generate=True)
                before = turns[index - 1].text.strip()
                runs[-1] += prompt[prompt.rindex(before) + len(before) :]
                runs += [rules.written(turn), ""]
            else:
                runs[-1] += head
                # White space between thoughts and answer belongs to neither.
                runs += [turn.text.lstrip() if thinks else turn.text, ""]
        yield (*runs[:-1], runs[-1] + rest)


class AnswerRules:
    """How a template wants answers: what the model writes behind the prompt, and what stays of it later."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        user, later = Message("user", "Quiet"), Message("user", "Later")
        prompt = oracle.render(user, generate=True)
        self.prompt = prompt[prompt.index("Quiet") + 5 :]
        plain = self._behind(oracle, user, Message("assistant", "Qword"), later)
        self.opening = plain.removeprefix(self.prompt) if plain.startswith(self.prompt) else ""
        self._fields_last = self._try(user, Message("assistant", "Qword", "Rword"))
        self._fields_middle = self._try(user, Message("assistant", "Qword", "Rword"), later)
        inline = Message("assistant", "<think>\nRword\n</think>\n\nQword")
        inline_middle = self._try(user, inline, later)
        self.strips_inline = "Qword" in inline_middle and "Rword" not in inline_middle
        shown_last = "Rword" in self._fields_last
        self.strips_fields = shown_last and "Rword" not in self._fields_middle
        self.strips = self.strips_inline or self.strips_fields

    @property
    def thoughts(self) -> str | None:
        """What the model writes: its thoughts (``Rword``) and what opens the answer behind them. None: unknown."""
        if "Rword" in self._fields_last and self._fields_last.startswith(self.prompt):
            return self._fields_last.removeprefix(self.prompt)
        if not self.strips_inline:
            return None
        return "Rword\n</think>\n\n" if self.prompt.rstrip().endswith("<think>") else "<think>\nRword\n</think>\n\n"

    def written(self, turn: Turn) -> str:
        """An answer as the model writes it."""
        if turn.reasoning and self.thoughts:
            return self.thoughts.replace("Rword", turn.reasoning) + turn.text
        return self.opening + turn.text

    def stripped_forms(self, turns: tuple[Turn, ...]) -> Iterator[list[Message]]:
        """Ways to give a template the answers with their reasoning."""
        yield [_message(turn) for turn in turns]
        yield [replace(_message(turn), reasoning=turn.reasoning) for turn in turns]
        yield [_inline(turn) for turn in turns]

    def _try(self, *messages: Message) -> str:
        try:
            return self._behind(self._oracle, *messages)
        except (Refused, ValueError):
            return ""

    @staticmethod
    def _behind(oracle: Oracle, *messages: Message) -> str:
        """What stands between the first text and the answer."""
        text = oracle.render(*messages)
        start = text.index("Quiet") + 5
        return text[start : text.index("Qword", start)]


def _inline(turn: Turn) -> Message:
    message = _message(turn)
    if not turn.reasoning:
        return message
    return replace(message, content=f"<think>\n{turn.reasoning}\n</think>\n\n{message.content}")
