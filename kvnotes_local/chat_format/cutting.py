"""A model's chat template, cut into the pieces of turns: rendered with contents that are found again, and cut around them.

Where a cut may lie is often open: between an answer and the next question stands the end of the one and the beginning of the
other. Cuts lie between tokens of the model's own vocabulary, and all that are possible are offered, the likeliest first; which of
them agrees with the template is for the proof to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvnotes_local.chat_format.format import (
    ACKNOWLEDGMENT,
    ChatFormat,
    FormatSource,
    SkillPlace,
    SystemPlace,
    Trim,
    Wrapper,
)
from kvnotes_local.chat_format.rendering import ANSWER, SYSTEM, USER, USER2, ChatRendering, CutError, between
from kvnotes_local.chat_format.sandbox import Message, TemplateError

_SEPARATOR = "\n\n"
"""Between a system text that we place in the first question and that question."""

_MAX_CUTS = 6
"""Cuts that are tried at one place."""

_PADDING = "\n \n"
"""Around a content, to see what a template trims: each kind of trimming leaves something else of it."""


def cut_turns(render: ChatRendering) -> Iterator[ChatFormat]:
    """Formats that the template may have, the likeliest first; without a system text and skills.

    Raises TemplateError, CutError.
    """
    user, answer, user2 = Message("user", USER), Message("assistant", ANSWER), Message("user", USER2)
    first, user_end = between(render(user), USER)
    prompt = render.behind_question
    first_of_two, to_answer, to_user, _ = between(render(user, answer, user2), USER, ANSWER, USER2)
    if first_of_two != first:
        raise CutError("the chat template opens a chat in another way once it goes on")
    answer_end = between(render(user, answer), ANSWER)[1] if render.accepts(user, answer) else to_user

    closings = _ordered(render, to_answer, limit=render.shared_opening(to_answer, prompt), likely=user_end)
    openings = [n for n in render.cuts(to_user) if first.endswith(to_user[n:]) and n < len(to_user)]
    if not openings:
        raise CutError("the chat template opens the first question in another way than later ones")
    likely = render.shared_opening(to_user, answer_end)
    openings.sort(key=lambda n: (n > likely, -n if n <= likely else n))
    for user_close in closings[:_MAX_CUTS]:
        for cut in openings[:_MAX_CUTS]:
            answer_close, user_open = to_user[:cut], to_user[cut:]
            answer_open, generation_open = to_answer[user_close:], prompt[user_close:]
            if not generation_open and answer_open.strip():
                generation_open = (
                    answer_open  # templates that know no generation prompt; white space is the model's own to write
                )
            wrapper = Wrapper(user_open, to_answer[:user_close])
            yield ChatFormat(
                head=first.removesuffix(user_open),
                empty_head=first.removesuffix(user_open),
                default_system=None,
                system=Wrapper(first, _SEPARATOR, Trim.BOTH),
                system_place=SystemPlace.NONE,
                system_opens_question=True,
                question_open="",
                question_trim=Trim.BOTH,
                user=wrapper,
                assistant=Wrapper(answer_open, answer_close),
                generation_open=generation_open,
                skill=wrapper,
                skill_place=SkillPlace.USER_TURN,
                source=FormatSource.TEMPLATE,
            )


def _ordered(render: ChatRendering, text: str, *, limit: int, likely: str) -> list[int]:
    """Places where ``text`` may be cut, at most ``limit`` characters in: first where it stops being like ``likely``."""
    places = [n for n in render.cuts(text) if n <= limit]
    best = min(limit, render.shared_opening(text, likely))
    return sorted(places, key=lambda n: (n != best, n)) or [0]


def with_system(found: ChatFormat, render: ChatRendering) -> ChatFormat:
    """The format with the place of a system text. Where the template has none, or one that moves with the chat, the text is
    placed in the first question."""
    system, user, answer, user2 = (
        Message("system", SYSTEM),
        Message("user", USER),
        Message("assistant", ANSWER),
        Message("user", USER2),
    )
    try:
        opening, gap, _ = between(render(system, user), SYSTEM, USER)
        head, *_ = between(render(system, user, answer, user2), USER, ANSWER, USER2)
    except (TemplateError, CutError):
        return found
    if SYSTEM not in head:
        return replace(found, system_place=SystemPlace.LAST_QUESTION)
    opens_question = not gap.endswith(found.user.open)
    close = gap if opens_question else gap.removesuffix(found.user.open)
    in_question = opens_question and bool(found.user.open.strip()) and found.user.open in opening
    return replace(
        found,
        empty_head=_empty_head(found, render),
        default_system=_default(found.head, opening, close) if not opens_question else None,
        system=Wrapper(opening, close),
        system_place=SystemPlace.FIRST_QUESTION if in_question else SystemPlace.TURN,
        system_opens_question=opens_question,
    )


def _empty_head(found: ChatFormat, render: ChatRendering) -> str:
    """How a chat begins with an empty system text."""
    try:
        opening, _ = between(render(Message("system", ""), Message("user", USER)), USER)
    except (TemplateError, CutError):
        return found.head
    return opening.removesuffix(found.user.open) if opening.endswith(found.user.open) else found.head


def _default(head: str, opening: str, close: str) -> str | None:
    """The text of the system turn that a template adds by itself; None for no such turn."""
    if len(head) >= len(opening) + len(close) and head.startswith(opening) and head.endswith(close) and opening + close:
        text = head[len(opening) : len(head) - len(close)]
        return text if text or close.strip() else None
    return None


def with_trims(found: ChatFormat, render: ChatRendering) -> ChatFormat:
    """The format with what the template trims off each kind of content."""
    user, answer, user2 = Message("user", USER), Message("assistant", ANSWER), Message("user", USER2)
    padded = Message("user", _padded(USER))
    before, behind = found.head + found.user.open, found.user.close + found.assistant.open + ANSWER
    found = replace(
        found, user=replace(found.user, trim=_trim(render, (padded, answer, user2), before, behind, padded.content))
    )
    padded = Message("assistant", _padded(ANSWER))
    before, behind = behind.removesuffix(ANSWER), found.assistant.close + found.user.open + USER2
    found = replace(
        found,
        assistant=replace(found.assistant, trim=_trim(render, (user, padded, user2), before, behind, padded.content)),
    )
    if found.system_is_placed:
        return found
    padded = Message("system", _padded(SYSTEM))
    behind = found.system.close + ("" if found.system_opens_question else found.user.open) + USER
    trim = _trim(render, (padded, user), found.system.open, behind, padded.content)
    return replace(found, system=replace(found.system, trim=trim), question_trim=found.user.trim)


def question_seams(found: ChatFormat) -> Iterator[ChatFormat]:
    """Ways to join a system text in the first question with that question, the nearest to the template first. White space in
    front of the question may merge with it; where white space merges on both sides, neither text may bring its own."""
    yield found
    system, white = found.system, found.system.close[len(found.system.close.rstrip()) :]
    if not found.system_opens_question or found.system_is_placed or not white:
        return
    yield replace(found, system=replace(system, close=system.close.rstrip()), question_open=white)
    yield replace(found, system=replace(system, trim=Trim.BOTH), question_trim=Trim.BOTH)


def _padded(content: str) -> str:
    return _PADDING + content + _PADDING


def _trim(render: ChatRendering, messages: tuple[Message, ...], before: str, behind: str, content: str) -> Trim:
    """The trimming after which ``before``, the content and ``behind`` stand in the rendering one after the other."""
    try:
        text = render(*messages)
    except TemplateError:
        return Trim.NONE
    return next((trim for trim in Trim if before + trim(content) + behind in text), Trim.NONE)


def skill_places(found: ChatFormat, render: ChatRendering) -> Iterator[ChatFormat]:
    """The format with each turn that a skill may be, the best first."""
    mid = (Message("user", USER), Message("assistant", ANSWER), Message("system", SYSTEM), Message("user", USER2))
    try:
        _, _, opening, closing, _ = between(render(*mid), USER, ANSWER, SYSTEM, USER2)
    except (TemplateError, CutError):
        pass
    else:
        before, behind = found.assistant.close, found.user.open
        if opening.startswith(before) and closing.endswith(behind) and len(opening) > len(before):
            wrapper = Wrapper(opening.removeprefix(before), closing.removesuffix(behind))
            padded = replace(mid[2], content=_padded(SYSTEM))
            trim = _trim(render, (*mid[:2], padded, mid[3]), ANSWER + opening, closing + USER2, padded.content)
            yield replace(found, skill=replace(wrapper, trim=trim), skill_place=SkillPlace.SYSTEM_TURN)
    user, assistant = found.user, found.assistant
    yield replace(found, skill=user, skill_place=SkillPlace.USER_TURN)
    close = user.close + assistant.open + ACKNOWLEDGMENT + assistant.close
    yield replace(found, skill=replace(user, close=close), skill_place=SkillPlace.ACKNOWLEDGED)
