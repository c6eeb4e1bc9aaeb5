"""One chat as a list of segments that can be changed in the middle, and the engine's cache kept in step with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.engine.protocol import Engine, Generation, ModelClass, Progress, Sampling, StopReason
from kvnotes_local.engine.turns import TurnTokenizer
from kvnotes_local.errors import EngineError, SkillError
from kvnotes_local.notebook.plan import PlanBuilder
from kvnotes_local.notebook.proof import PrefillSpeed, Proof
from kvnotes_local.notebook.segment import Freshness, Kind, Run, Segment, all_tokens, make_segment
from kvnotes_local.skills.compiler import CompiledSkill, SkillCompiler, template_pieces
from kvnotes_local.skills.library import SkillLibrary
from kvnotes_local.skills.template import parse_template

DEFAULT_MAX_TOKENS = 512

OnText = Callable[[str], None]
"""Called with each piece of an answer as it is generated."""


@dataclass(frozen=True)
class Reply:
    """An answer with its proof. ``first_logits``: float32 (n_vocab,) before its first token, where asked for."""

    text: str
    proof: Proof
    stop_reason: StopReason
    segment: Segment
    first_logits: NDArray[np.float32] | None = None


class Notebook:
    """A chat. The segments are the truth; the engine's sequence holds a prefix of their tokens (``check`` verifies it).

    ``compiler`` and ``library`` are needed for skills only. ``on_notice`` is told in a sentence what users should know. Every change either succeeds as a whole or leaves the chat as it
    was.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        library: SkillLibrary | None = None,
        compiler: SkillCompiler | None = None,
        system: str | None = None,
        on_notice: OnText | None = None,
    ) -> None:
        self._notice = on_notice or (lambda text: None)
        self._engine = engine
        self._library = library
        self._compiler = compiler
        self._turns = TurnTokenizer(engine.info.chat_format, engine.tokenize)
        self._speed = PrefillSpeed()
        self._cost = Proof()
        self._seq = engine.new_sequence()
        self.segments: tuple[Segment, ...] = self._beginning(system)

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def tokens(self) -> list[int]:
        """All tokens of the chat; a token's position is its index."""
        return all_tokens(self.segments)

    @property
    def n_cached(self) -> int:
        """Tokens whose rows the engine holds; the rest is decoded with the next change."""
        return len(self._engine.tokens(self._seq))

    @property
    def skills(self) -> tuple[str, ...]:
        return tuple(segment.name for segment in self.segments if segment.kind is Kind.SKILL)

    def check(self) -> None:
        """Verify that the engine holds a prefix of the chat's tokens. Raises EngineError."""
        held, tokens = self._engine.tokens(self._seq), self.tokens
        if list(held) != tokens[: len(held)]:
            at = next((i for i, (a, b) in enumerate(zip(held, tokens, strict=False)) if a != b), len(tokens))
            raise EngineError(f"The engine's cache differs from the chat from token {at:,} on; read the chat again.")

    # -- growing -------------------------------------------------------------------------------------------------------

    def say(self, user: str, assistant: str) -> None:
        """Append an exchange as it is, without asking the model."""
        answer = self._turns.wrap(self._turns.format.assistant, assistant)
        self.segments += (self._user_segment(user), make_segment(Kind.ASSISTANT, answer, assistant))

    def read(self, *, progress: Progress | None = None) -> None:
        """Let the model read what it has not read yet (an exchange that was said, the end of the last answer)."""
        self._apply(PlanBuilder(self.n_cached).keep(0, self.tokens), self.segments, progress=progress)

    def forget_cost(self) -> None:
        """Let the next proof begin here: what the chat cost so far is not counted in it."""
        self._cost = Proof()

    def splice(
        self,
        name: str,
        *,
        repair: int | None = None,
        values: Mapping[str, str] | None = None,
        read: bool = False,
        progress: Progress | None = None,
    ) -> Segment:
        """Put a skill at the end of the chat: its rows come from its artifact, which is compiled first if need be.

        ``repair``: tokens at the seam to compute on the real prefix. ``read``: let the model read the skill instead; models of
        class prefix-only do so wherever they cannot restore a state, and ``on_notice`` is told. A skill that is in the chat
        already stays where it is. Raises SkillError, ArtifactError, EngineError.
        """
        for segment in self.segments:
            if segment.kind is Kind.SKILL and segment.name == name:
                return segment
        if self._library is None or self._compiler is None:
            raise SkillError("This notebook was made without a skill library, so it cannot splice.")
        skill = self._library.get(name)
        wrapper = self._turns.format.skill
        tokens = tuple(self.tokens)
        prefix_only = self._engine.info.model_class is ModelClass.PREFIX_ONLY
        if prefix_only and not read and any(segment.kind is not Kind.SYSTEM for segment in self.segments):
            self._notice(
                f"{self._engine.info.name} can take in a compiled skill at the start of a chat only "
                f"({self._engine.info.class_reason}); {name} is read now."
            )
            read = True
        plan = PlanBuilder(self.n_cached)
        if read:
            turn = self._compiler.turn(skill, wrapper=wrapper, values=values)
            segment = make_segment(Kind.SKILL, turn, skill.text(values), name)
            plan.keep(0, tokens).decode(segment.tokens)
            self._apply(plan, (*self.segments, segment), progress=progress)
            return segment
        compiled = self._compiler.compile(
            skill, wrapper=wrapper, values=values, behind=tokens if prefix_only else None, progress=progress
        )
        if prefix_only:
            segment = _skill_segment(compiled, 0)
            plan.splice(compiled.path, 0, len(tokens) + compiled.n_tokens)
            self._apply(plan, (*self.segments, segment), progress=progress)
            return segment
        k = min(compiled.repair_tokens if repair is None else repair, compiled.n_tokens)
        segment = _skill_segment(compiled, k)
        plan.keep(0, tokens).decode(segment.tokens[:k]).splice(compiled.path, k, compiled.n_tokens)
        self._apply(plan, (*self.segments, segment), repaired=k, progress=progress)
        return segment

    def ask(
        self,
        text: str,
        *,
        sampling: Sampling | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        on_text: OnText | None = None,
        keep_logits: bool = False,
        progress: Progress | None = None,
    ) -> Reply:
        """Ask, let the model answer, and keep both. ``on_text`` is called with each piece as it comes.

        ``cancel`` on the engine ends the answer early; what was said so far is kept and marked as stopped.
        """
        began = time.perf_counter()
        question = self._user_segment(text)
        opening = self._turns.generation_open()
        plan = PlanBuilder(self.n_cached).keep(0, self.tokens).decode(question.tokens + opening)
        answer = Segment(Kind.ASSISTANT, opening, content_start=len(opening), content_stop=len(opening))
        self._apply(plan, (*self.segments, question, answer), logits=True, progress=progress)
        logits = self._engine.logits(self._seq) if keep_logits else None
        generation = self._engine.generate(self._seq, sampling or Sampling(), max_tokens)
        answered, ttft = self._listen(generation, on_text, began)
        proof = replace(
            self._cost,
            generated=len(generation.tokens),
            ttft_ms=ttft * 1e3,
            recompute_ms=self._speed.milliseconds(len(self.tokens)),
            tokens_per_second=len(generation.tokens) / generation.seconds if generation.seconds else None,
        )
        self._cost = Proof()
        stop_reason = generation.stop_reason or StopReason.STOPPED
        segment = self._answer_segment(opening, generation, answered, stop_reason)
        self.segments = (*self.segments[:-1], segment)
        return Reply(answered, proof, stop_reason, segment, logits)

    def close(self) -> None:
        """Give the engine's sequence back."""
        self._engine.free_sequence(self._seq)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _apply(
        self,
        plan: PlanBuilder,
        segments: tuple[Segment, ...],
        *,
        repaired: int = 0,
        logits: bool = False,
        progress: Progress | None = None,
    ) -> None:
        applied = self._engine.apply(self._seq, plan.parts, logits=logits, progress=progress)
        self._speed.add(applied.decoded, applied.decode_seconds)
        self._cost = self._cost.plus(applied, repaired if applied.spliced else 0, is_question=logits)
        self.segments = segments

    def _listen(self, generation: Generation, on_text: OnText | None, began: float) -> tuple[str, float]:
        """Take in a generation. Returns the text, cut at a stop text, and the seconds to the first token."""
        stops = self._turns.format.stop_texts
        text, shown = "", 0
        first: float | None = None
        for event in generation:
            if first is None:
                first = time.perf_counter() - began
            text += event.text
            at = min((found for stop in stops if (found := text.find(stop)) >= 0), default=-1)
            if at >= 0:
                text = text[:at]
                generation.events.close()
                generation.stop_reason = StopReason.END
                break
            safe = len(text) - _held_back(text, stops)
            if on_text is not None and safe > shown:
                on_text(text[shown:safe])
                shown = safe
        if on_text is not None and len(text) > shown:
            on_text(text[shown:])
        return text, first if first is not None else time.perf_counter() - began

    def _beginning(self, system: str | None) -> tuple[Segment, ...]:
        chat_format = self._turns.format
        begin = self._turns.begin()
        text = chat_format.default_system if system is None else system
        if chat_format.system is None or not text:
            return (Segment(Kind.SYSTEM, begin, runs=(Run(len(begin), Freshness.FRESH),)),) if begin else ()
        turn = self._turns.wrap(chat_format.system, template_pieces(parse_template(text)))
        shifted = [replace(span, start=span.start + len(begin), stop=span.stop + len(begin)) for span in turn.fields]
        turn = replace(
            turn,
            tokens=begin + turn.tokens,
            content_start=turn.content_start + len(begin),
            content_stop=turn.content_stop + len(begin),
            fields=tuple(shifted),
        )
        return (make_segment(Kind.SYSTEM, turn, text),)

    def _user_segment(self, text: str) -> Segment:
        wrapper = self._turns.format.user
        if self.segments and self.segments[-1].kind is Kind.SYSTEM and self.segments[-1].text:
            wrapper = replace(wrapper, open=self._turns.format.user_open_after_system)
        return make_segment(Kind.USER, self._turns.wrap(wrapper, text), text)

    def _answer_segment(
        self, opening: tuple[int, ...], generation: Generation, text: str, stop_reason: StopReason
    ) -> Segment:
        content = tuple(generation.tokens)
        if self._turns.format.stop_texts:
            content = self._tokens_up_to(content, text)
        tokens = opening + content + self._turns.assistant_close()
        return Segment(
            Kind.ASSISTANT,
            tokens,
            text=text,
            content_start=len(opening),
            content_stop=len(opening) + len(content),
            runs=(Run(len(tokens), Freshness.FRESH),),
            stopped=stop_reason is StopReason.STOPPED,
        )

    def _tokens_up_to(self, tokens: tuple[int, ...], text: str) -> tuple[int, ...]:
        """The tokens of an answer that was cut at a stop text: the longest beginning that says no more than ``text``."""
        for n in range(len(tokens), -1, -1):
            if text.startswith(self._engine.detokenize(tokens[:n])):
                return tokens[:n]
        return ()


def _skill_segment(compiled: CompiledSkill, repaired: int) -> Segment:
    segment = make_segment(Kind.SKILL, compiled.turn, compiled.text, compiled.skill.name)
    runs = (Run(repaired, Freshness.REPAIRED), Run(compiled.n_tokens - repaired, Freshness.SPLICED))
    return replace(segment, artifact=compiled.key).with_runs(*runs)


def _held_back(text: str, stops: tuple[str, ...]) -> int:
    """Characters at the end of ``text`` that may be the beginning of a stop text."""
    return max((n for stop in stops for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), default=0)
