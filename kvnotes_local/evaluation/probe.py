"""Where the notes are: which rows of a context carry the decision that a field leads to.

The context is read twice, with two values of the field. Then rows of the second reading are put into the first, and the
question is asked again. ``recovery`` is the share of the way from the first decision to the second: (m - m_first) /
(m_second - m_first), with m the difference of two answers' log-probabilities. 0: these rows carry nothing, 1: all of it.
Swapping a field's own rows and swapping what stands behind it are the two halves of the same experiment as in
"Models Take Notes at Prefill" (arXiv 2606.17107).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from kvnotes_local.contract.model_info import ModelClass
from kvnotes_local.contract.plan import Decode, Graft, Keep, Part
from kvnotes_local.contract.protocol import Engine
from kvnotes_local.errors import KvnotesError, UsageError
from kvnotes_local.evaluation.answering import built, forked
from kvnotes_local.evaluation.decision_cases import DecisionText, choice_margin, telling_tokens
from kvnotes_local.evaluation.statistics import Estimate, estimate
from kvnotes_local.notebook.changes import EVERYTHING, Draft, field_values
from kvnotes_local.notebook.segment import Kind, Segment, all_tokens, start_of
from kvnotes_local.notebook.segment_factory import SegmentFactory
from kvnotes_local.wording import counted

TOP = 8
"""How many of the strongest positions are swapped together."""
MAX_TRIALS = 160
"""Questions that may be asked to find positions; a longer context is searched window by window first."""
WINDOW = 16
MIN_FLIP = 0.5
"""Smallest distance, in nats, of the two decisions for a recovery to mean something."""
N_LAYER_RANGES = 4
N_RANDOM = 5

Step = Callable[[str], None]


@dataclass(frozen=True)
class ProbeCase:
    """A context with a field, a question about it, and two answers. ``segments``: with ``values[0]`` in place."""

    name: str
    segments: tuple[Segment, ...]
    field: str
    values: tuple[str, str]
    ask: str
    answers: tuple[str, str]


@dataclass(frozen=True)
class Window:
    """Rows ``start … stop`` (positions of the first reading) swapped together."""

    start: int
    stop: int
    recovery: float


@dataclass(frozen=True)
class LayerRange:
    """All rows behind the field, but only of these layers, as shares of the depth."""

    first: float
    stop: float
    recovery: float


@dataclass(frozen=True)
class Probe:
    """What was found in one context.

    ``margins``: of the two readings. ``own``: recovery by the field's own rows; ``later``: by all rows behind it. ``windows``
    cover all of what stands behind the field; ``positions`` are single rows, strongest first (all of them where the context
    is short enough, else those of the strongest windows). ``top``, ``random``: recovery by the ``TOP`` strongest positions
    together, and by as many random ones (mean over draws). ``pieces``: text of each token of the first reading.
    """

    name: str
    field_name: str
    n_tokens: int
    field: tuple[int, int]
    margins: tuple[float, float]
    own: float
    later: float
    windows: tuple[Window, ...]
    positions: tuple[Window, ...]
    layers: tuple[LayerRange, ...]
    top: float
    random: float
    pieces: tuple[str, ...]


def probe(
    engine: Engine, case: ProbeCase, *, max_trials: int = MAX_TRIALS, seed: int = 0, step: Step = lambda what: None
) -> Probe:
    """Probe one case. Raises KvnotesError for a model whose rows cannot be swapped, where answers begin alike, or
    where the decision hardly changes; UsageError for a field that is not in the context."""
    if engine.info.model_class is not ModelClass.SPLICE:
        raise KvnotesError(f"Rows of {engine.info.name} cannot be swapped: {engine.info.class_reason}.")
    telling_tokens(engine, *case.answers)  # refused before anything is read
    readings = _Readings.of(engine, case)
    with ExitStack() as stack:
        step("reading the context with both values")
        first = stack.enter_context(built(engine, [Decode(readings.first)]))
        second = stack.enter_context(built(engine, [Decode(readings.second)]))
        return _Swaps(engine, case, readings, first, second, step).run(max_trials, seed)


@dataclass(frozen=True)
class _Readings:
    """Tokens of both readings; the field is ``start … stop`` in the first one and begins at the same place in the second,
    where what follows stands ``shift`` tokens later."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    start: int
    stop: int
    shift: int
    ask: tuple[int, ...]

    @classmethod
    def of(cls, engine: Engine, case: ProbeCase) -> _Readings:
        factory = SegmentFactory(engine)
        places = [
            (start_of(case.segments, index) + span.start, start_of(case.segments, index) + span.stop)
            for index, segment in enumerate(case.segments)
            for span in segment.fields
            if span.name == case.field
        ]
        if len(places) != 1:
            raise UsageError(
                f"{case.name} has the field {case.field!r} {counted(len(places), 'time')}; it has to stand there once."
            )
        changed = Draft(case.segments, 0).keep_with_field(
            case.field, case.values[1], factory.tokens_of, factory.text_of, window=EVERYTHING
        )
        first, second = all_tokens(case.segments), all_tokens(changed.change().segments)
        ask = factory.user(case.ask, case.segments[-1]).tokens + factory.opening().tokens
        ((start, stop),) = places
        return cls(tuple(first), tuple(second), start, stop, len(second) - len(first), ask)


class _Swaps:
    """Asks again and again, each time with other rows swapped."""

    def __init__(
        self, engine: Engine, case: ProbeCase, readings: _Readings, first: int, second: int, step: Step
    ) -> None:
        self._engine = engine
        self._case = case
        self._readings = readings
        self._first, self._second = first, second
        self._step = step
        n = len(readings.first)
        self._before = self._margin(first, [Keep(0, n)])
        self._after = self._margin(second, [Keep(0, len(readings.second))])
        if abs(self._after - self._before) < MIN_FLIP:
            raise KvnotesError(
                f"In {case.name} the value of {case.field!r} moves the decision by only {abs(self._after - self._before):.2f} "
                "nats, so there is nothing to trace. Use another question, other values or a larger model."
            )

    def run(self, max_trials: int, seed: int) -> Probe:
        r, n = self._readings, len(self._readings.first)
        self._step("swapping the field and what follows")
        # The field's rows of the second reading, and what follows of the first.
        own = self._recovery([Keep(0, r.start), Graft(self._second, r.start, r.stop + r.shift), Keep(r.stop, n)])
        later = self._recovery([Keep(0, r.stop), Graft(self._second, r.stop + r.shift, n + r.shift)])
        layers = tuple(self._layers(i / N_LAYER_RANGES, (i + 1) / N_LAYER_RANGES) for i in range(N_LAYER_RANGES))
        windows, positions = self._search(max_trials)
        top = [one.start for one in positions[:TOP]]
        rng = np.random.default_rng(seed)
        places = np.arange(r.stop, n)
        draws = [
            self._recovery(self._swapped(sorted(rng.choice(places, min(TOP, len(places)), replace=False).tolist())))
            for _ in range(N_RANDOM)
        ]
        return Probe(
            name=self._case.name,
            field_name=self._case.field,
            n_tokens=n,
            field=(r.start, r.stop),
            margins=(self._before, self._after),
            own=own,
            later=later,
            windows=windows,
            positions=positions,
            layers=layers,
            top=self._recovery(self._swapped(sorted(top))),
            random=float(np.mean(draws)),
            pieces=tuple(self._engine.detokenize([token]) for token in r.first),
        )

    def _search(self, max_trials: int) -> tuple[tuple[Window, ...], tuple[Window, ...]]:
        """Windows over all that follows, then single positions of the strongest windows, strongest first."""
        start, n = self._readings.stop, len(self._readings.first)
        if n - start <= max_trials:
            singles = [self._single(position) for position in range(start, n)]
            return tuple(singles), _strongest(singles)
        width = max(WINDOW, -(-2 * (n - start) // max_trials))
        windows = []
        for at in range(start, n, width):
            stop = min(n, at + width)
            self._step(f"swapping tokens {at:,}–{stop:,} of {n:,}")
            windows.append(Window(at, stop, self._recovery(self._swapped(list(range(at, stop))))))
        budget = max_trials - len(windows)
        singles = []
        for window in _strongest(windows):
            if len(singles) + window.stop - window.start > budget:
                break
            singles += [self._single(position) for position in range(window.start, window.stop)]
        return tuple(windows), _strongest(singles)

    def _single(self, position: int) -> Window:
        self._step(f"swapping token {position:,} of {len(self._readings.first):,}")
        return Window(position, position + 1, self._recovery(self._swapped([position])))

    def _layers(self, first: float, stop: float) -> LayerRange:
        r, n = self._readings, len(self._readings.first)
        graft = Graft(self._second, r.stop + r.shift, n + r.shift, own=r.stop, depth=(first, stop))
        return LayerRange(first, stop, self._recovery([Keep(0, r.stop), graft]))

    def _swapped(self, positions: Sequence[int]) -> list[Part]:
        """A plan with these rows (all behind the field, ascending) from the second reading."""
        parts: list[Part] = []
        at = 0
        for position in positions:
            parts += [
                Keep(at, position),
                Graft(self._second, position + self._readings.shift, position + 1 + self._readings.shift),
            ]
            at = position + 1
        return [*_joined(parts), Keep(at, len(self._readings.first))]

    def _recovery(self, parts: Sequence[Part]) -> float:
        return (self._margin(self._first, parts) - self._before) / (self._after - self._before)

    def _margin(self, seq: int, parts: Sequence[Part]) -> float:
        with forked(self._engine, seq) as fork:
            self._engine.apply(fork, [*parts, Decode(self._readings.ask)])
            return choice_margin(self._engine, self._engine.logits(fork), *self._case.answers)


def _joined(parts: Sequence[Part]) -> list[Part]:
    """Neighbouring grafts as one, and nothing empty."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if not part.n_tokens:
            continue
        if isinstance(part, Graft) and isinstance(last, Graft) and last.stop == part.start:
            joined[-1] = Graft(part.source, last.start, part.stop)
        else:
            joined.append(part)
    return joined


def _strongest(windows: Sequence[Window]) -> tuple[Window, ...]:
    return tuple(sorted(windows, key=lambda one: one.recovery, reverse=True))


def decision_probe_cases(engine: Engine, texts: Sequence[DecisionText]) -> tuple[ProbeCase, ...]:
    """The bundled decisions as cases: the text is the system turn, or the first thing that the user says."""
    factory = SegmentFactory(engine)
    cases = []
    for text in texts:
        for case in text.cases:
            cases.append(
                ProbeCase(
                    name=case.field,
                    segments=factory.beginning(text.text, {}),
                    field=case.field,
                    values=case.values,
                    ask=case.ask,
                    answers=case.answers,
                )
            )
    return tuple(cases)


def chat_probe_case(
    name: str, segments: Sequence[Segment], field: str, value: str, ask: str, answers: tuple[str, str]
) -> ProbeCase:
    """A case out of a chat: what would another value of this field change? Raises UsageError for an unknown field, or its
    own value."""
    values = field_values(segments)
    if field not in values:
        raise UsageError(f"The chat {name} has no field {field!r}. Its fields: {', '.join(values) or 'none'}.")
    if values[field] == value:
        raise UsageError(f"The field {field!r} of the chat {name} is {value!r} already. Give another value for it.")
    kept = tuple(segment for segment in segments if segment.kind is not Kind.ERRATUM)
    return ProbeCase(f"chat {name}", kept, field, (values[field], value), ask, answers)


@dataclass(frozen=True)
class ProbeSummary:
    """Recoveries over several cases, with 95 % bootstrap intervals."""

    own: Estimate
    later: Estimate
    top: Estimate
    random: Estimate


def summarize(probes: Sequence[Probe]) -> ProbeSummary:
    """Over at least one probe."""
    return ProbeSummary(
        own=estimate([one.own for one in probes]),
        later=estimate([one.later for one in probes]),
        top=estimate([one.top for one in probes]),
        random=estimate([one.random for one in probes]),
    )
