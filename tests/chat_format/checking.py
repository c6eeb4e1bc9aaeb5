"""A template's chats as the product puts them together, compared as token ids with the template's own rendering."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

from tests.chat_format.chats import ALL_CHATS, Chat, Kind
from tests.chat_format.markers import marked_vocabulary
from tests.chat_format.oracle import Oracle
from tests.chat_format.product import Source, product_claims, product_pieces
from tests.chat_format.readings import AnswerRules, NoReading, Place, Reading, readings
from tests.zoo.vocabulary_model import LoadedVocabulary, load_vocabulary


class Outcome(Enum):
    """PLACED: exact, but a text stands in a turn that is not its own, or what the template leaves out stays."""

    EXACT = "exact"
    PLACED = "placed"
    PLAIN = "plain"
    WRONG = "wrong"
    NO_CHAT = "renders no plain chat"


@dataclass(frozen=True)
class Difference:
    """Where the product's tokens leave the rendering: the texts of both from shortly before there."""

    chat: str
    product: str
    rendering: str

    def __str__(self) -> str:
        return f"{self.chat}: {self.product!r} instead of {self.rendering!r}"


@dataclass(frozen=True)
class Result:
    """What came out for one template. ``places``: texts that stand elsewhere; ``reason``: why it is plain."""

    outcome: Outcome
    differences: tuple[Difference, ...] = ()
    places: frozenset[Place] = frozenset()
    reason: str = ""


@dataclass(frozen=True)
class Setting:
    """A kind of vocabulary."""

    adds_bos: bool
    merging: bool


SETTINGS = (Setting(False, False), Setting(True, False), Setting(False, True))


def check_template(template: str, chats: Sequence[Chat] = ALL_CHATS, settings: Iterable[Setting] = SETTINGS) -> Result:
    """The template in every kind of vocabulary: the worst outcome, with all differences."""
    results = [check_in(template, vocabulary_of(template, setting), chats) for setting in settings]
    worst = max((result.outcome for result in results), key=list(Outcome).index)
    return Result(
        worst,
        tuple(difference for result in results for difference in result.differences),
        frozenset(place for result in results for place in result.places),
        next((result.reason for result in results if result.reason), ""),
    )


@lru_cache(maxsize=256)
def vocabulary_of(template: str, setting: Setting) -> LoadedVocabulary:
    """llama.cpp's tokenizer with the template's markers as tokens."""
    return load_vocabulary(marked_vocabulary(template, adds_bos=setting.adds_bos, merging=setting.merging))


def check_in(template: str, vocabulary: LoadedVocabulary, chats: Sequence[Chat]) -> Result:
    """The template in one vocabulary."""
    oracle = Oracle(template, vocabulary.bos, vocabulary.eos)
    if oracle.call is None:
        return Result(Outcome.NO_CHAT)
    claims = product_claims(template, vocabulary)
    if claims.source is Source.PLAIN:
        return Result(Outcome.PLAIN, reason=claims.problem or "no reason given")
    differences: list[Difference] = []
    places: set[Place] = set()
    rules = AnswerRules(oracle)
    for chat in chats:
        try:
            admissible = readings(oracle, chat)
        except NoReading:
            continue
        tokens = product_pieces(template, vocabulary, written(rules, chat))
        met = next((one for one in admissible if expected_tokens(vocabulary, one, chat) == tokens), None)
        if met is None:
            differences.append(_difference(vocabulary, chat, tokens, admissible[0]))
        else:
            places |= met.places - {Place.SYSTEM_TURN, Place.SKILL_AS_SYSTEM}
    if differences:
        return Result(Outcome.WRONG, tuple(differences), frozenset(places))
    placed = places - {Place.SKILL_AS_USER}
    return Result(Outcome.PLACED if placed else Outcome.EXACT, places=frozenset(places))


def written(rules: AnswerRules, chat: Chat) -> Chat:
    """The chat with its answers as the model writes them behind the generation prompt."""
    return replace(
        chat,
        turns=tuple(
            replace(turn, text=rules.written(turn)) if turn.kind is Kind.ANSWER else turn for turn in chat.turns
        ),
    )


def expected_tokens(vocabulary: LoadedVocabulary, reading: Reading, chat: Chat) -> list[int]:
    """The whole rendering, and one BOS in front where the model adds one that the template does not write."""
    tokens = [token for run in reading.runs for token in vocabulary.tokenize(run, special=True)]
    head = reading.text[: reading.text.index(chat.turns[0].text.strip())]
    if vocabulary.adds_bos and vocabulary.bos not in head:
        return vocabulary.tokenize(vocabulary.bos, special=True) + tokens
    return tokens


def _difference(vocabulary: LoadedVocabulary, chat: Chat, tokens: list[int], reading: Reading) -> Difference:
    expected = expected_tokens(vocabulary, reading, chat)
    same = 0
    while same < min(len(tokens), len(expected)) and tokens[same] == expected[same]:
        same += 1
    shown = slice(max(0, same - 4), same + 24)
    texts = [vocabulary.detokenize(ids[shown]) for ids in (tokens, expected)]
    if texts[0].startswith(texts[1]) or texts[1].startswith(
        texts[0]
    ):  # the same text in other tokens: show where each ends
        texts = ["·".join(vocabulary.detokenize([one]) for one in ids[shown]) for ids in (tokens, expected)]
    return Difference(chat.name, *texts)
