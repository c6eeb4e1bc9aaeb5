"""Where a model's template puts a system text into the first question: what joins the two, and what parts them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvnotes_local.chat_format.turns import TurnTokenizer
from kvnotes_local.notebook.segment import Freshness, Kind, Run, Segment, merge_runs


@dataclass(frozen=True)
class QuestionJoint:
    """A system text that is ``open`` has opened a user turn, which the question behind it continues.

    ``opening``: tokens that such a question lacks. ``closing``: tokens that end the system text's turn, as a short exchange,
    where something else than a question follows it.
    """

    opening: tuple[int, ...]
    closing: tuple[int, ...]

    def is_open(self, segment: Segment) -> bool:
        """Has this segment opened the question behind it?"""
        is_text = segment.kind is Kind.SYSTEM and segment.content_stop > segment.content_start
        return is_text and segment.tokens[-len(self.closing) :] != self.closing

    def continues(self, segment: Segment) -> bool:
        """Is this a question without an opening of its own?"""
        n = max(1, len(self.opening) - 1)  # the last token may have merged with the text
        return segment.kind is Kind.USER and segment.tokens[:n] != self.opening[:n]

    def closed(self, system: Segment) -> Segment:
        """An open system text as a turn of its own."""
        runs = merge_runs((*system.runs, Run(len(self.closing), Freshness.FRESH)))
        return replace(system, tokens=system.tokens + self.closing, runs=runs)

    def opened(self, question: Segment) -> Segment:
        """A question that continued a system text, as a turn of its own."""
        n = len(self.opening)
        return replace(
            question,
            tokens=self.opening + question.tokens,
            content_start=question.content_start + n,
            content_stop=question.content_stop + n,
            fields=tuple(replace(span, start=span.start + n, stop=span.stop + n) for span in question.fields),
            runs=merge_runs((Run(n, Freshness.FRESH), *question.runs)),
        )


def question_joint(turns: TurnTokenizer) -> QuestionJoint | None:
    """The joint of a model's format; None where a system text is a turn of its own."""
    if not turns.format.system_opens_question:
        return None
    return QuestionJoint(turns.user_open(), turns.closing())
