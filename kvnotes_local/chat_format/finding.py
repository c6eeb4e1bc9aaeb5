"""The chat format of a model: cut from its template, proven against it, or plain with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from kvnotes_local.chat_format.cutting import cut_turns, question_seams, skill_places, with_system, with_trims
from kvnotes_local.chat_format.format import PLAIN_FORMAT, ChatFormat, DatedTexts, SkillPlace
from kvnotes_local.chat_format.proof import proven_skills, proven_turns
from kvnotes_local.chat_format.reasoning import with_reasoning
from kvnotes_local.chat_format.rendering import ANSWER, SYSTEM, USER, USER2, ChatRendering, CutError, between
from kvnotes_local.chat_format.sandbox import Message, TemplateError, TemplateRenderer
from kvnotes_local.chat_format.turns import Tokenize

FINDING_VERSION = 1
"""Goes up with each change of this package that may find another format: what was remembered before is then found anew."""

_PROBE_DATES = (datetime(2027, 10, 28, 21, 17, 36), datetime(2031, 5, 4, 6, 58, 12))
"""Days, months, years and times that differ from COMPILE_DATE and from one another in every part."""


@dataclass(frozen=True)
class FoundIn:
    """Where a format comes from: a model's template and its vocabulary. ``bos``, ``eos``: texts of the tokens; ``adds_bos``: the
    vocabulary wants a BOS in front of each chat."""

    template: str | None
    tokenize: Tokenize
    bos: str
    eos: str
    adds_bos: bool

    def rendering(self) -> ChatRendering:
        """Raises TemplateError for a template that cannot be read."""
        renderer = TemplateRenderer(self.template or "", bos=self.bos, eos=self.eos)
        return ChatRendering(renderer, self.tokenize, bos=self.bos, adds_bos=self.adds_bos)

    def plain(self, problem: str | None = None) -> ChatFormat:
        """Our own format, in this vocabulary."""
        start = self.bos if self.adds_bos else ""
        system = replace(PLAIN_FORMAT.system, open=start)
        return replace(PLAIN_FORMAT, head=start, empty_head=start, system=system, problem=problem)


def find_chat_format(where: FoundIn, now: datetime | None = None) -> ChatFormat:
    """The pieces of a chat template that were proven to be right in this vocabulary; PLAIN_FORMAT, with the reason in
    ``problem``, where it has none or they were not. ``now``: for templates that compute with the date (default: the current
    time)."""
    if not where.template:
        return where.plain()
    try:
        render = where.rendering()
        found = _with_dates(_with_ends(_proven(render, where.tokenize), render), render)
        return replace(found, today=_todays_texts(found, render, now))
    except (TemplateError, CutError) as error:
        return where.plain(problem=str(error))


def with_todays_texts(found: ChatFormat, where: FoundIn, now: datetime | None = None) -> ChatFormat:
    """A format that was found before, with its texts for today where the template computes with the date. Nothing is rendered
    for others. Raises TemplateError, CutError (both are ValueErrors) for another template than it was found in."""
    return replace(found, today=_todays_texts(found, where.rendering(), now)) if found.computes_date else found


def _proven(render: ChatRendering, tokenize: Tokenize) -> ChatFormat:
    """The first format whose turns are proven, where a skill has the best place. Raises CutError with what differed."""
    problem = None
    acceptable: ChatFormat | None = None
    for found in _cut(render):
        differs = proven_turns(found, render, tokenize)
        if differs is not None:
            problem = problem or differs
            continue
        for placed in skill_places(found, render):
            differs = proven_skills(placed, render, tokenize)
            if differs is None and placed.skill_place is not SkillPlace.ACKNOWLEDGED:
                return with_reasoning(replace(placed, proven=True), render, tokenize)
            if differs is None:
                acceptable = acceptable or placed
            problem = problem or differs
    if acceptable is None:
        raise CutError(problem or "the chat template cannot be cut into turns")
    return with_reasoning(replace(acceptable, proven=True), render, tokenize)


def _cut(render: ChatRendering) -> Iterator[ChatFormat]:
    """Formats that the template may have, the likeliest first; a skill has no place yet."""
    for turns in cut_turns(render):
        yield from question_seams(with_trims(with_system(turns, render), render))


def _with_ends(found: ChatFormat, render: ChatRendering) -> ChatFormat:
    """The format with what ends an answer: the special token that stands behind one, or plain text where none does."""
    user, answer, user2 = Message("user", USER), Message("assistant", ANSWER), Message("user", USER2)
    _, behind, _ = between(render(user, answer, user2), ANSWER, USER2)
    ends = [behind]
    if render.accepts(user, answer):
        ends.append(between(render(user, answer), ANSWER)[1])
    closes = found.reasoning.close if found.reasoning is not None else ""
    markers = {render.first_special(end) for end in ends} - {""}
    # What also ends the thoughts in front of an answer does not end the turn.
    markers = {marker for marker in markers if marker not in closes}
    stops = (behind.rstrip(),) if behind.strip() and not render.has_special(behind) else ()
    return replace(found, end_markers=tuple(sorted(markers)), stop_texts=stops)


def _with_dates(found: ChatFormat, render: ChatRendering) -> ChatFormat:
    """The format with what its template prints of the date, where putting another date in its place was proven."""
    patterns = tuple(sorted(render.renderer.date_patterns, key=len, reverse=True))
    if not patterns:
        return found
    dated = replace(found, date_patterns=patterns)
    if all(dated.texts_on(date) == _rendered_on(found, render, date) for date in _PROBE_DATES):
        return dated
    return replace(found, computes_date=True)


def _todays_texts(found: ChatFormat, render: ChatRendering, now: datetime | None) -> DatedTexts | None:
    return _rendered_on(found, render, now or datetime.now()) if found.computes_date else None


def _rendered_on(found: ChatFormat, render: ChatRendering, date: datetime) -> DatedTexts:
    """The texts that may hold a date as the template writes them then. Raises TemplateError, CutError."""
    user = Message("user", USER)
    first = found.question_open if found.system_opens_question else found.user.open
    head = between(render(user, now=date), USER)[0].removesuffix(found.user.open)
    if found.system_is_placed:
        return DatedTexts(head, head, head + found.user.open, found.system.close, found.default_system)
    opening, gap, _ = between(render(Message("system", SYSTEM), user, now=date), SYSTEM, USER)
    empty_head = head
    if found.empty_head != found.head:
        empty_head = between(render(Message("system", ""), user, now=date), USER)[0].removesuffix(found.user.open)
    close = gap.removesuffix(first)
    default = None if found.default_system is None else head[len(opening) : len(head) - len(close)]
    return DatedTexts(head, empty_head, opening, close, default)
