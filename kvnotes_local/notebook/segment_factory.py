"""Segments made from texts, in one model's chat format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from kvnotes_local.chat_format.reasoning import leaving, split_reasoning
from kvnotes_local.chat_format.turns import TurnTokenizer
from kvnotes_local.contract.generation import Generation, StopReason
from kvnotes_local.contract.protocol import Engine
from kvnotes_local.notebook.errata import dropped_skill_erratum, field_erratum
from kvnotes_local.notebook.question_joint import question_joint
from kvnotes_local.notebook.segment import Freshness, Kind, Run, Segment, make_segment
from kvnotes_local.skills.compiler import CompiledSkill, SkillCompiler, template_pieces
from kvnotes_local.skills.skill import Skill
from kvnotes_local.skills.template import parse_template, render


class SegmentFactory:
    """Makes the segments of chats with one model."""

    def __init__(self, engine: Engine, now: datetime | None = None) -> None:
        self._engine = engine
        self.format = engine.info.chat_format.on(now or datetime.now())
        self.turns = TurnTokenizer(self.format, engine.tokenize)
        self.joint = question_joint(self.turns)

    def beginning(self, system: str | None, values: Mapping[str, str], *, closed: bool = False) -> tuple[Segment, ...]:
        """How a chat begins: BOS and the system turn (``system`` None: the one that the model's template adds). ``closed``:
        something else than a question follows."""
        pieces = parse_template(system or "")
        turn = self.turns.beginning(None if system is None else template_pieces(pieces, values), closed=closed)
        text = self.format.default_system or "" if system is None else render(pieces, values)
        return (make_segment(Kind.SYSTEM, turn, text),) if turn.tokens else ()

    def user(self, text: str, before: Segment | None) -> Segment:
        """A user turn behind the segment ``before``."""
        continues = self.joint is not None and before is not None and self.joint.is_open(before)
        return make_segment(Kind.USER, self.turns.user(text, continues=continues), text)

    def assistant(self, text: str) -> Segment:
        """An answer that the model did not give here."""
        return make_segment(Kind.ASSISTANT, self.turns.assistant(text), text)

    def opening(self) -> Segment:
        """The beginning of an answer that the model is to give."""
        opening = self.turns.generation_open()
        return Segment(Kind.ASSISTANT, opening, content_start=len(opening), content_stop=len(opening)).with_runs(
            Run(len(opening), Freshness.FRESH)
        )

    def answer(self, opening: Segment, generation: Generation, text: str) -> Segment:
        """The answer that was generated behind an opening; cut to ``text`` where a stop text ended it."""
        content = tuple(generation.tokens)
        if self.format.stop_texts:
            content = self._tokens_up_to(content, text)
        tokens = opening.tokens + content + self.turns.assistant_close()
        segment = replace(
            opening,
            tokens=tokens,
            text=text,
            content_stop=opening.content_start + len(content),
            stopped=generation.stop_reason is StopReason.STOPPED,
        ).with_runs(Run(len(tokens), Freshness.FRESH))
        return self._with_reasoning(segment, content)

    def _with_reasoning(self, segment: Segment, content: tuple[int, ...]) -> Segment:
        """Find the reasoning in front of an answer, and which tokens the template leaves out of finished turns."""
        spoken = split_reasoning(segment.text, self.format)
        if spoken.thinking:
            return segment
        markers = self.format.reasoning
        said = 0
        if spoken.thought and markers is not None:
            said = self._behind(markers.close.strip(), content)
            # The white space between the two belongs to neither.
            while said < len(content) and not self._engine.detokenize(content[said : said + 1]).strip():
                said += 1
        elif spoken.said != segment.text:
            said = self._behind(self.format.answer_open, content)
        segment = replace(segment, text=spoken.said, reasoning=spoken.reasoning)
        if not self.format.proven or (spoken.thought and not (markers and markers.leaves)):
            return segment
        gone = leaving(self.turns.generation_open(), self.turns.assistant_open(), content, said)
        return segment if gone is None else replace(segment, reasoning_start=gone[0], reasoning_stop=gone[1])

    def _behind(self, marker: str, content: tuple[int, ...]) -> int:
        """Index of the first token behind a marker."""
        return bisect_left(range(len(content)), True, key=lambda n: marker in self._engine.detokenize(content[:n]))

    def skill(self, compiled: CompiledSkill) -> Segment:
        return replace(
            make_segment(Kind.SKILL, compiled.turn, compiled.text, compiled.skill.name), artifact=str(compiled.path)
        )

    def read_skill(self, compiler: SkillCompiler, skill: Skill, values: Mapping[str, str] | None) -> Segment:
        """A skill that the model is to read instead of taking its rows from an artifact."""
        return make_segment(Kind.SKILL, compiler.turn(skill, values=values), skill.text(values), skill.name)

    def field_erratum(self, name: str, value: str) -> Segment:
        return replace(self._erratum(name, field_erratum(name, value)), value=value)

    def dropped_skill_erratum(self, name: str) -> Segment:
        return self._erratum(name, dropped_skill_erratum(name))

    def text_of(self, tokens: Sequence[int]) -> str:
        return self._engine.detokenize(tokens)

    def tokens_of(self, text: str) -> list[int]:
        return self.turns.text(text)

    def _erratum(self, name: str, text: str) -> Segment:
        return make_segment(Kind.ERRATUM, self.turns.skill(text), text, name)

    def _tokens_up_to(self, tokens: tuple[int, ...], text: str) -> tuple[int, ...]:
        """The longest beginning of an answer that says no more than ``text``."""
        for n in range(len(tokens), -1, -1):
            if text.startswith(self._engine.detokenize(tokens[:n])):
                return tokens[:n]
        return ()
