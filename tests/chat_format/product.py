"""The product's own way from a chat to tokens: the only place here that knows its API."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from types import SimpleNamespace

from kvnotes_local.chat_format.finding import FoundIn, find_chat_format
from kvnotes_local.chat_format.format import ChatFormat
from kvnotes_local.chat_format.turns import TurnTokenizer
from kvnotes_local.contract.generation import Generation, StopReason
from kvnotes_local.notebook.changes import Draft
from kvnotes_local.notebook.segment import Segment
from kvnotes_local.notebook.segment_factory import SegmentFactory
from kvnotes_local.skills.leads import LEADS, lead_tokens
from tests.chat_format.chats import Chat, Kind
from tests.zoo.vocabulary_model import LoadedVocabulary


class Source(Enum):
    """Where the product's format comes from."""

    TEMPLATE = "template"
    PLAIN = "plain"


@dataclass(frozen=True)
class Claims:
    """What the product says of a template's format. ``problem``: why it is not used, or not as it is."""

    source: Source
    problem: str | None


def product_claims(template: str, vocabulary: LoadedVocabulary) -> Claims:
    """What the product says of the template in a vocabulary."""
    found = _format(template, vocabulary)
    return Claims(Source(found.source.value), found.problem)


def product_pieces(template: str, vocabulary: LoadedVocabulary, chat: Chat) -> list[int]:
    """The tokens that the product feeds the model for a chat, put together turn by turn."""
    factory = _factory(template, vocabulary)
    system = next((turn.text for turn in chat.turns if turn.kind is Kind.SYSTEM), None)
    segments = factory.beginning(system, {})
    for turn in chat.turns:
        last = segments[-1] if segments else None
        if turn.kind is Kind.USER:
            segments = _without_reasoning(factory, segments)
            segments = _appended(factory, segments, factory.user(turn.text, last))
        elif turn.kind is Kind.ASSISTANT:
            segments = _appended(factory, segments, factory.assistant(turn.text))
        elif turn.kind is Kind.SKILL:
            segments = _appended(factory, segments, _skill(factory, turn.text))
        elif turn.kind is Kind.ANSWER:
            segments = _appended(factory, segments, _answer(factory, vocabulary, turn.text))
    if chat.generate:
        segments = _appended(factory, segments, factory.opening())
    return [token for segment in segments for token in segment.tokens]


def _appended(factory: SegmentFactory, segments: tuple[Segment, ...], new: Segment) -> tuple[Segment, ...]:
    return Draft(segments, 0, factory.joint).keep().read(new).change().segments


@lru_cache(maxsize=256)
def _format(template: str, vocabulary: LoadedVocabulary) -> ChatFormat:
    return find_chat_format(FoundIn(template, vocabulary.tokenize, vocabulary.bos, vocabulary.eos, vocabulary.adds_bos))


@lru_cache(maxsize=256)
def _factory(template: str, vocabulary: LoadedVocabulary) -> SegmentFactory:
    info = SimpleNamespace(chat_format=_format(template, vocabulary))
    return SegmentFactory(
        SimpleNamespace(info=info, tokenize=vocabulary.tokenize, detokenize=vocabulary.detokenize)  # type: ignore[arg-type]
    )


def _skill(factory: SegmentFactory, text: str) -> Segment:
    skill = SimpleNamespace(name="skill", text=lambda values: text)
    compiler = SimpleNamespace(turn=lambda skill, values: factory.turns.skill(text))
    return factory.read_skill(compiler, skill, None)  # type: ignore[arg-type]


def _answer(factory: SegmentFactory, vocabulary: LoadedVocabulary, written: str) -> Segment:
    """``written``: what the model writes behind the prompt, markers included."""
    tokens = vocabulary.tokenize(written, special=True)
    return factory.answer(factory.opening(), Generation(tokens=tokens, stop_reason=StopReason.END), written)


def _without_reasoning(factory: SegmentFactory, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """What is left of answers once another question follows."""
    draft = Draft(segments, 0, factory.joint)
    for index, segment in enumerate(segments):
        if segment.reasoning_stop > segment.reasoning_start:
            draft.keep_without_reasoning(index)
        else:
            draft.keep(index, index + 1)
    return draft.change().segments


def product_lead(template: str, vocabulary: LoadedVocabulary) -> list[int]:
    """The tokens of a chat's beginning behind which a skill is compiled."""
    turns = TurnTokenizer(_format(template, vocabulary), vocabulary.tokenize)
    return list(lead_tokens(turns, LEADS[0]))
