"""Changes of a chat, worked out without an engine: the new segments, and from where their rows come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvnotes_local.chat_format.turns import FieldSpan
from kvnotes_local.contract.plan import Part
from kvnotes_local.notebook.plan import PlanBuilder
from kvnotes_local.notebook.question_joint import QuestionJoint
from kvnotes_local.notebook.segment import Freshness, Kind, Run, Segment, all_tokens, merge_runs, start_of

EVERYTHING = 1 << 62
"""A window that reaches to the end of every chat."""

TokenizeText = Callable[[str], Sequence[int]]
DetokenizeText = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Change:
    """New segments and the plan that makes the engine hold them. ``repaired``: decoded tokens that are seams."""

    segments: tuple[Segment, ...]
    parts: tuple[Part, ...]
    repaired: int = 0


class Draft:
    """Puts a change together from left to right out of old segments, newly read ones and spliced ones.

    Once something has been added, removed or altered, what is kept behind it counts as stale, except for the next
    ``window`` tokens, which are computed anew. ``joint``: how a system text that stands in the first question is parted from what
    else comes behind it, and a question from it.
    """

    def __init__(self, old: Sequence[Segment], n_cached: int, joint: QuestionJoint | None = None) -> None:
        self._old = tuple(old)
        self._joint = joint
        self._plan = PlanBuilder(n_cached)
        self._segments: list[Segment] = []
        self._repaired = 0
        self._changed = False
        self._window = 0

    def keep(self, start: int = 0, stop: int | None = None) -> Draft:
        """Old segments ``start … stop`` by index."""
        for index in range(start, len(self._old) if stop is None else stop):
            segment = self._old[index]
            parted = self._part(segment)
            runs = self._keep_tokens(segment.tokens, start_of(self._old, index), segment.runs)
            kept = replace(segment, runs=merge_runs(runs))
            self._segments.append(self._joint.opened(kept) if parted and self._joint else kept)
        return self

    def keep_without_reasoning(self, index: int) -> Draft:
        """Old segment ``index`` without the tokens of its reasoning, whose text stays."""
        segment = self._old[index]
        at = start_of(self._old, index)
        start, stop = segment.reasoning_start, segment.reasoning_stop
        runs = self._keep_tokens(segment.tokens[:start], at, _cut(segment.runs, 0, start))
        self.changed()
        runs += self._keep_tokens(segment.tokens[stop:], at + stop, _cut(segment.runs, stop, segment.n_tokens))
        self._segments.append(
            replace(
                segment,
                tokens=segment.tokens[:start] + segment.tokens[stop:],
                content_start=start,
                content_stop=segment.content_stop - (stop - start),
                reasoning_start=0,
                reasoning_stop=0,
                runs=merge_runs(runs),
            )
        )
        return self

    def read(self, segment: Segment) -> Draft:
        """A new segment that the model reads. What is kept behind it has been read without it."""
        self._part(segment)
        self._plan.decode(segment.tokens)
        self._segments.append(segment.with_runs(Run(segment.n_tokens, Freshness.FRESH)))
        return self.changed()

    def splice(self, segment: Segment, artifact: Path, repaired: int) -> Draft:
        """A new segment whose rows, after the first ``repaired`` tokens, come from an artifact."""
        self._part(segment)
        self._plan.decode(segment.tokens[:repaired]).splice(artifact, repaired, segment.n_tokens)
        runs = (Run(repaired, Freshness.REPAIRED), Run(segment.n_tokens - repaired, Freshness.SPLICED))
        self._segments.append(replace(segment.with_runs(*runs), seam=repaired))
        self._repaired += repaired
        return self.changed()

    def restore(self, segment: Segment, artifact: Path) -> Draft:
        """All old segments and a new one behind them, from an artifact that holds the whole state (prefix-only models)."""
        self._segments += self._old
        self._plan.splice(artifact, 0, sum(old.n_tokens for old in self._old) + segment.n_tokens)
        self._segments.append(segment.with_runs(Run(segment.n_tokens, Freshness.SPLICED)))
        return self.changed()

    def _part(self, segment: Segment) -> bool:
        """Part a system text in the first question from ``segment``, which comes next, unless it is that question. True where it
        is a question that needs its opening, which is read."""
        joint = self._joint
        if joint is None:
            return False
        is_open = bool(self._segments) and joint.is_open(self._segments[-1])
        continues = joint.continues(segment)
        if is_open and not continues:
            self._plan.decode(joint.closing)
            self._segments[-1] = joint.closed(self._segments[-1])
            self.changed()
        elif continues and not is_open:
            self._plan.decode(joint.opening)
            self.changed()
            return True
        return False

    @property
    def has_stale(self) -> bool:
        """Is something kept stale?"""
        return any(run.freshness is Freshness.STALE for segment in self._segments for run in segment.runs)

    def changed(self, window: int = 0) -> Draft:
        """Something before here is not as it was: compute the next ``window`` tokens anew, the rest kept is stale."""
        self._changed = True
        self._window = max(self._window, window)
        return self

    def keep_with_field(
        self,
        name: str,
        value: str,
        tokenize: TokenizeText,
        detokenize: DetokenizeText,
        *,
        window: int = 0,
        without: int | None = None,
    ) -> Draft:
        """All old segments but ``without``, the values of field ``name`` replaced in place by one of any length."""
        for index, segment in enumerate(self._old):
            spans = [span for span in segment.fields if span.name == name and span.value != value]
            if index == without:
                self.changed(window)
            elif spans:
                parted = self._part(segment)
                new = self._with_value(
                    segment, start_of(self._old, index), spans, value, tuple(tokenize(value)), window
                )
                text = detokenize(new.tokens[new.content_start : new.content_stop])
                new = replace(new, text=text)
                self._segments.append(self._joint.opened(new) if parted and self._joint else new)
            else:
                self.keep(index, index + 1)
        return self

    def change(self) -> Change:
        return Change(tuple(self._segments), self._plan.parts, self._repaired)

    def _with_value(
        self,
        segment: Segment,
        position: int,
        spans: Sequence[FieldSpan],
        value: str,
        new: tuple[int, ...],
        window: int,
    ) -> Segment:
        tokens: list[int] = []
        runs: list[Run] = []
        fields: list[FieldSpan] = []

        def keep(start: int, stop: int) -> None:
            runs.extend(
                self._keep_tokens(segment.tokens[start:stop], position + start, _cut(segment.runs, start, stop))
            )
            tokens.extend(segment.tokens[start:stop])

        at = 0
        for span in segment.fields:
            keep(at, span.start)
            start = len(tokens)
            if span in spans:
                self._plan.decode(new)
                tokens.extend(new)
                runs.append(Run(len(new), Freshness.EDITED))
                fields.append(FieldSpan(span.name, value, start, len(tokens)))
                self.changed(window)
            else:
                keep(span.start, span.stop)
                fields.append(replace(span, start=start, stop=len(tokens)))
            at = span.stop
        keep(at, segment.n_tokens)
        return replace(
            segment,
            artifact=None,  # it holds the rows of another value
            tokens=tuple(tokens),
            fields=tuple(fields),
            content_stop=segment.content_stop + len(tokens) - segment.n_tokens,
            runs=merge_runs(runs),
        )

    def _keep_tokens(self, tokens: Sequence[int], position: int, runs: Sequence[Run]) -> list[Run]:
        """Rows at old positions ``position …``; returns their runs as they are now."""
        if not self._changed:
            self._plan.keep(position, tokens)
            return list(runs)
        n_read = min(self._window, len(tokens))
        self._window -= n_read
        self._plan.decode(tokens[:n_read])
        self._plan.keep(position + n_read, tokens[n_read:])
        return [Run(n_read, Freshness.FRESH), Run(len(tokens) - n_read, Freshness.STALE)]


def _cut(runs: Sequence[Run], start: int, stop: int) -> list[Run]:
    """The part of ``runs`` that covers tokens ``start … stop``."""
    cut: list[Run] = []
    at = 0
    for run in runs:
        n = min(stop, at + run.n_tokens) - max(start, at)
        if n > 0:
            cut.append(Run(n, run.freshness))
        at += run.n_tokens
    return cut


def find_skill(segments: Sequence[Segment], name: str) -> int | None:
    """Index of a skill's segment."""
    return next((i for i, segment in enumerate(segments) if segment.kind is Kind.SKILL and segment.name == name), None)


def field_values(segments: Sequence[Segment]) -> dict[str, str]:
    """Current value of each field of a chat: what its erratum says, else what stands in its place."""
    values: dict[str, str] = {}
    for segment in segments:
        for span in segment.fields:
            values.setdefault(span.name, span.value)
    for segment in segments:
        if segment.kind is Kind.ERRATUM and segment.name in values:
            values[segment.name] = segment.value
    return values


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    shorter = min(len(a), len(b))
    return next((i for i in range(shorter) if a[i] != b[i]), shorter)


def rebuild(
    segments: Sequence[Segment], held: Sequence[int], *, whole_states: bool = False, from_artifacts: bool = True
) -> Change:
    """Make the engine hold a chat of which it holds something else: what agrees at the beginning stays, artifacts that
    still exist are spliced (unless ``from_artifacts`` forbids it), the rest is read. ``whole_states``: artifacts hold what stands
    before the skill as well."""
    common = common_length(held, all_tokens(segments))
    plan = PlanBuilder(common)
    new: list[Segment] = []
    repaired = 0
    at = 0
    for segment in segments:
        kept = max(0, min(segment.n_tokens, common - at))
        plan.keep(at, segment.tokens[:kept])
        path = _usable_artifact(segment) if from_artifacts else None
        if path is not None and whole_states and common < at + segment.n_tokens:
            plan = PlanBuilder(0).splice(path, 0, at + segment.n_tokens)
            segment = segment.with_runs(Run(segment.n_tokens, Freshness.SPLICED))
        elif path is not None and kept < segment.n_tokens and not whole_states:
            k = max(kept, segment.seam)
            plan.decode(segment.tokens[kept:k]).splice(path, k, segment.n_tokens)
            repaired += k - kept
            runs = (*_cut(segment.runs, 0, kept), Run(k - kept, Freshness.REPAIRED))
            segment = segment.with_runs(*runs, Run(segment.n_tokens - k, Freshness.SPLICED))
        elif kept < segment.n_tokens:
            plan.decode(segment.tokens[kept:])
            runs = (*_cut(segment.runs, 0, kept), Run(segment.n_tokens - kept, Freshness.FRESH))
            segment = segment.with_runs(*runs)
        new.append(segment)
        at += segment.n_tokens
    return Change(tuple(new), plan.parts, repaired)


def _usable_artifact(segment: Segment) -> Path | None:
    """The file that a segment's rows came from, as long as it is there and the rows were not computed again since: those are
    better than what the file holds."""
    if segment.artifact is None or {run.freshness for run in segment.runs} == {Freshness.FRESH}:
        return None
    path = Path(segment.artifact)
    return path if path.exists() else None
