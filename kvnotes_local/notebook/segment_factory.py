"""Segments made from texts, in one model's chat format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvnotes_local.chat_format.format import REASONING_CLOSE, REASONING_OPEN
from kvnotes_local.chat_format.turns import TurnTokenizer, TurnTokens
from kvnotes_local.contract.generation import Generation, StopReason
from kvnotes_local.contract.protocol import Engine
from kvnotes_local.notebook.errata import dropped_skill_erratum, field_erratum
from kvnotes_local.notebook.segment import Freshness, Kind, Run, Segment, make_segment
from kvnotes_local.skills.compiler import CompiledSkill, SkillCompiler, template_pieces
from kvnotes_local.skills.skill import Skill
from kvnotes_local.skills.template import parse_template, render


class SegmentFactory:
    """Makes the segments of chats with one model."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.format = engine.info.chat_format
        self.turns = TurnTokenizer(self.format, engine.tokenize)

    def beginning(self, system: str | None, values: Mapping[str, str]) -> tuple[Segment, ...]:
        """How a chat begins: BOS and the system turn (``system`` None: the one that the model's template adds)."""
        begin = self.turns.begin()
        text = self.format.default_system if system is None else system
        if self.format.system is None or not text:
            return (Segment(Kind.SYSTEM, begin, runs=(Run(len(begin), Freshness.FRESH),)),) if begin else ()
        pieces = parse_template(text)
        turn = self.turns.wrap(self.format.system, template_pieces(pieces, values))
        return (make_segment(Kind.SYSTEM, _behind(begin, turn), render(pieces, values)),)

    def user(self, text: str, before: Segment | None) -> Segment:
        """A user turn behind the segment ``before``."""
        wrapper = self.format.user
        if before is not None and before.kind is Kind.SYSTEM and before.text:
            wrapper = replace(wrapper, open=self.format.user_open_after_system)
        return make_segment(Kind.USER, self.turns.wrap(wrapper, text), text)

    def assistant(self, text: str) -> Segment:
        """An answer that the model did not give here."""
        return make_segment(Kind.ASSISTANT, self.turns.wrap(self.format.assistant, text), text)

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
        """Find the reasoning in front of an answer. It is a part of its own only where the template will strip it."""
        opened = self.format.generation_open.rstrip().endswith(REASONING_OPEN)
        text = segment.text.lstrip()
        if REASONING_CLOSE not in text or not (opened or text.startswith(REASONING_OPEN)):
            return segment
        reasoning, _, said = text.partition(REASONING_CLOSE)
        segment = replace(segment, text=said.lstrip(), reasoning=reasoning.removeprefix(REASONING_OPEN).strip())
        if not self.format.strips_reasoning:
            return segment
        lengths = range(len(content) + 1)
        stop = bisect_left(lengths, True, key=lambda n: REASONING_CLOSE in self._engine.detokenize(content[:n]))
        while stop < len(content) and not self._engine.detokenize(content[stop : stop + 1]).strip():
            stop += 1  # the template strips the empty lines behind the reasoning, too
        start = segment.content_start
        if self.format.generation_open.startswith(self.format.assistant.open):
            start = len(self._engine.tokenize(self.format.assistant.open, special=True))
        return replace(segment, reasoning_start=start, reasoning_stop=segment.content_start + stop)

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
        return make_segment(Kind.ERRATUM, self.turns.wrap(self.format.skill, text), text, name)

    def _tokens_up_to(self, tokens: tuple[int, ...], text: str) -> tuple[int, ...]:
        """The longest beginning of an answer that says no more than ``text``."""
        for n in range(len(tokens), -1, -1):
            if text.startswith(self._engine.detokenize(tokens[:n])):
                return tokens[:n]
        return ()


def _behind(begin: tuple[int, ...], turn: TurnTokens) -> TurnTokens:
    n = len(begin)
    return TurnTokens(
        begin + turn.tokens,
        turn.content_start + n,
        turn.content_stop + n,
        tuple(replace(span, start=span.start + n, stop=span.stop + n) for span in turn.fields),
    )
