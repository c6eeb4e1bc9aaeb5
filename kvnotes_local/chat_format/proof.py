"""The proof of a chat format: chats put together from its pieces against the template's own rendering, as token ids.

The contents begin and end with what vocabularies merge across a seam. Every shape of chat that the product makes is covered: with
and without a system text, several turns, skills and errata between turns and at the start, the prompt for an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from kvnotes_local.chat_format.format import ACKNOWLEDGMENT, SYSTEM_REQUEST, ChatFormat, SkillPlace
from kvnotes_local.chat_format.rendering import ChatRendering
from kvnotes_local.chat_format.sandbox import Message, TemplateError
from kvnotes_local.chat_format.turns import Tokenize, TurnTokenizer

CONTENTS = (
    "Hello there",
    " a blank in front and behind ",
    "\nline feeds\n",
    "7 digits at both ends 42",
    "漢字で始まり漢字で終わる",
    "🙂 emoji 🙂",
    "\n \n white space of all kinds \t\n",
    "What now?",
)


class Role(Enum):
    """What a turn of a chat is."""

    SYSTEM = auto()
    USER = auto()
    ASSISTANT = auto()
    SKILL = auto()


@dataclass(frozen=True)
class Turn:
    """A turn of a chat that is compared."""

    role: Role
    text: str


def proven_turns(found: ChatFormat, render: ChatRendering, tokenize: Tokenize) -> str | None:
    """Do questions and answers agree, with and without a system text? None, or what differs."""
    user, assistant, system = Role.USER, Role.ASSISTANT, Role.SYSTEM
    chats = [
        *_chats((user, assistant, user), CONTENTS),
        *_chats((user,), CONTENTS[:2]),
        *_chats((user, assistant, user, assistant, user), CONTENTS[:1]),
        *_chats((system, user, assistant, user), CONTENTS),
        *_chats((system, user), CONTENTS[:1]),
    ]
    return _problem(found, render, tokenize, chats)


def proven_skills(found: ChatFormat, render: ChatRendering, tokenize: Tokenize) -> str | None:
    """Do turns that hold a skill agree, wherever they stand? None, or what differs."""
    user, assistant, system, skill = Role.USER, Role.ASSISTANT, Role.SYSTEM, Role.SKILL
    chats = [
        *_chats((user, assistant, skill, user, assistant, user), CONTENTS[:3]),
        *_chats((system, user, assistant, skill, user), CONTENTS[3:6]),
        *_chats((user, assistant, skill, skill, user), CONTENTS[:1]),
        *_chats((user, skill, user), CONTENTS[:1] if found.skill_place is SkillPlace.USER_TURN else ()),
        *_chats((system, skill, user), CONTENTS[:1]),
        *_chats((skill, skill, user, assistant, user), CONTENTS[:1]),
    ]
    return _problem(found, render, tokenize, chats)


def _chats(roles: Sequence[Role], contents: Sequence[str]) -> Iterator[list[Turn]]:
    """A chat of these roles for each of ``contents``, which is its first text; those behind it in CONTENTS are the others."""
    for content in contents:
        first = CONTENTS.index(content)
        yield [Turn(role, CONTENTS[(first + n) % len(CONTENTS)]) for n, role in enumerate(roles)]


def _problem(
    found: ChatFormat, render: ChatRendering, tokenize: Tokenize, chats: Iterable[Sequence[Turn]]
) -> str | None:
    turns = TurnTokenizer(found, tokenize)
    for chat in chats:
        shape = ", ".join(turn.role.name.lower() for turn in chat)
        try:
            expected = render.tokens(_rendered(found, render, chat))
        except TemplateError as error:
            return f"the chat template refuses a chat of {shape}: {error}"
        if put_together(turns, chat) != expected:
            return f"put together from its pieces, a chat of {shape} differs from what the chat template writes"
    return None


def put_together(turns: TurnTokenizer, chat: Sequence[Turn]) -> list[int]:
    """Tokens of a chat up to the prompt for an answer, as the product makes them."""
    system = chat[0].text if chat[0].role is Role.SYSTEM else None
    tokens = list(turns.beginning(system).tokens)
    is_open = system is not None and turns.format.system_opens_question
    for turn in chat[system is not None :]:
        if is_open and turn.role is not Role.USER:
            tokens += turns.closing()
            is_open = False
        if turn.role is Role.USER:
            tokens += turns.user(turn.text, continues=is_open).tokens
        else:
            make = turns.skill if turn.role is Role.SKILL else turns.assistant
            tokens += make(turn.text).tokens
        is_open = False
    return [*tokens, *turns.generation_open()]


def _rendered(found: ChatFormat, render: ChatRendering, chat: Sequence[Turn]) -> str:
    """What the template writes for a chat, with the prompt for an answer."""
    messages = list(_messages(found, chat))
    if chat[0].role is Role.SKILL and found.skill_place is SkillPlace.SYSTEM_TURN and found.default_system is not None:
        messages.insert(
            0, Message("system", found.default_system)
        )  # else the skill would take the place of the default
    text = render(*messages, generate=True)
    # Templates that know no prompt for an answer get the opening of an answer.
    return text + found.generation_open if render.behind_question == found.user.close else text


def _messages(found: ChatFormat, chat: Sequence[Turn]) -> Iterator[Message]:
    """The chat as messages for the template: what it has no place for stands where the format says."""
    placed = ""
    for number, turn in enumerate(chat):
        behind_system = number == 1 and chat[0].role is Role.SYSTEM and found.system_opens_question
        if behind_system and turn.role is not Role.USER:
            yield Message("user", placed + SYSTEM_REQUEST)
            yield Message("assistant", ACKNOWLEDGMENT)
            placed = ""
        if turn.role is Role.SYSTEM and found.system_is_placed:
            placed = found.system.trim(turn.text) + found.system.close
        elif turn.role is Role.SYSTEM:
            # Texts that share a turn are trimmed where they meet, since their white space would merge.
            yield Message("system", found.system.trim(turn.text) if found.system_opens_question else turn.text)
        elif turn.role is Role.USER:
            yield Message("user", placed + (found.question_trim(turn.text) if behind_system else turn.text))
            placed = ""
        elif turn.role is Role.ASSISTANT:
            yield Message("assistant", turn.text)
        elif found.skill_place is SkillPlace.SYSTEM_TURN:
            yield Message("system", turn.text)
        else:
            yield Message("user", turn.text)
            if found.skill_place is SkillPlace.ACKNOWLEDGED:
                yield Message("assistant", ACKNOWLEDGMENT)
