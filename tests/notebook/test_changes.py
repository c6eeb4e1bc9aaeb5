"""Changes worked out without an engine, carried out by an engine of lists that remembers what each row has seen."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kvnotes_local.chat_format.turns import FieldSpan
from kvnotes_local.contract.plan import Decode, Keep, Part, Splice
from kvnotes_local.notebook.changes import (
    EVERYTHING,
    Change,
    Draft,
    common_length,
    field_values,
    find_skill,
    rebuild,
)
from kvnotes_local.notebook.question_joint import QuestionJoint
from kvnotes_local.notebook.segment import Freshness, Kind, Run, Segment, all_tokens

JOINT = QuestionJoint(opening=(901, 902), closing=(903, 904))


@dataclass(frozen=True)
class Row:
    """A row of the cache: its token, and the tokens that it was computed on, or the artifact that it came from."""

    token: int
    seen: tuple[int, ...] = ()
    artifact: Path | None = None


class ListEngine:
    """Carries out plans as the contract says: a position is an index in the plan."""

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self.rows = list(rows)
        self.n_decoded = 0
        self.artifacts: dict[Path, tuple[int, ...]] = {}

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(row.token for row in self.rows)

    def apply(self, parts: Sequence[Part]) -> None:
        new: list[Row] = []
        self.n_decoded = 0
        for part in parts:
            match part:
                case Keep(start, stop):
                    assert 0 <= start < stop <= len(self.rows)
                    new += self.rows[start:stop]
                case Decode(tokens):
                    assert tokens
                    for token in tokens:
                        new.append(Row(token, tuple(row.token for row in new)))
                    self.n_decoded += len(tokens)
                case Splice(artifact, start, stop):
                    assert 0 <= start < stop <= len(self.artifacts[artifact])
                    new += [Row(token, artifact=artifact) for token in self.artifacts[artifact][start:stop]]
        self.rows = new

    def decode(self, tokens: Sequence[int]) -> None:
        self.apply([Decode(tuple(tokens))])


def check(change: Change, engine: ListEngine) -> None:
    """Rows hold the chat's tokens, and each is what its freshness says."""
    tokens = tuple(all_tokens(change.segments))
    assert engine.tokens == tokens
    at = 0
    for segment in change.segments:
        assert sum(run.n_tokens for run in segment.runs) == segment.n_tokens
        assert 0 <= segment.content_start <= segment.content_stop <= segment.n_tokens
        for run in segment.runs:
            assert run.n_tokens > 0
            for row in engine.rows[at : at + run.n_tokens]:
                if run.freshness is Freshness.SPLICED:
                    assert row.artifact is not None
                elif run.freshness is Freshness.STALE:
                    assert row.artifact is not None or row.seen != tokens[:at], "it is not stale at all"
                else:
                    assert row.artifact is None
                    assert row.seen == tokens[:at], (run, at)
                at += 1


_next_token = iter(range(1, 1 << 40))


def fresh_tokens(n: int) -> tuple[int, ...]:
    """Tokens that stand nowhere else."""
    return tuple(next(_next_token) + 10_000 for _ in range(n))


def segment(kind: Kind = Kind.USER, n: int = 4, name: str = "", fields: Sequence[FieldSpan] = ()) -> Segment:
    tokens = fresh_tokens(n)
    return Segment(
        kind,
        tokens,
        name=name,
        content_start=min(1, n),
        content_stop=n,
        fields=tuple(fields),
        runs=(Run(n, Freshness.FRESH),),
    )


def read(engine: ListEngine, *segments: Segment) -> tuple[Segment, ...]:
    """The segments, held by the engine, each read after the others."""
    draft = Draft((), 0)
    for one in segments:
        draft.read(one)
    change = draft.change()
    engine.apply(change.parts)
    check(change, engine)
    return change.segments


def spell(value: str) -> tuple[int, ...]:
    return tuple(5_000 + ord(char) for char in value)


def words(tokens: Sequence[int]) -> str:
    return " ".join(map(str, tokens))


def with_fields(kind: Kind, *values: tuple[str, str]) -> Segment:
    """A segment with fields, words between and around them."""
    tokens = fresh_tokens(2)
    fields = []
    for name, value in values:
        start = len(tokens)
        tokens += spell(value)
        fields.append(FieldSpan(name, value, start, len(tokens)))
        tokens += fresh_tokens(2)
    return Segment(
        kind,
        tokens,
        text=words(tokens[1:-1]),
        content_start=1,
        content_stop=len(tokens) - 1,
        fields=tuple(fields),
        runs=(Run(len(tokens), Freshness.FRESH),),
    )


class TestDraft:
    @pytest.fixture
    def engine(self) -> ListEngine:
        return ListEngine()

    def test_what_is_kept_unchanged_stays_as_it_is(self, engine: ListEngine) -> None:
        old = read(engine, segment(), segment(), segment())
        change = Draft(old, len(engine.rows)).keep().change()
        assert change.parts == (Keep(0, len(engine.rows)),)
        assert change.segments == old

    def test_what_the_engine_has_not_read_yet_is_read(self, engine: ListEngine) -> None:
        old = read(engine, segment(n=4), segment(n=5))
        engine.rows = engine.rows[:6]
        change = Draft(old, 6).keep().change()
        engine.apply(change.parts)
        check(change, engine)
        assert engine.n_decoded == 3

    @pytest.mark.parametrize("window", [0, 1, 3, 4, 6, 12, EVERYTHING])
    def test_behind_a_change_a_window_is_read_again_and_the_rest_is_stale(
        self, engine: ListEngine, window: int
    ) -> None:
        old = read(engine, segment(n=4), segment(n=4), segment(n=4), segment(n=4))
        draft = Draft(old, 16).keep(0, 1).changed(window).keep(2)
        change = draft.change()
        engine.apply(change.parts)
        check(change, engine)
        n_read = min(window, 8)
        assert engine.n_decoded == n_read
        freshness = [run.freshness for one in change.segments[1:] for run in one.runs for _ in range(run.n_tokens)]
        assert freshness == [Freshness.FRESH] * n_read + [Freshness.STALE] * (8 - n_read)
        assert draft.has_stale is (n_read < 8)
        assert change.repaired == 0

    def test_the_wider_of_two_windows_counts(self, engine: ListEngine) -> None:
        old = read(engine, segment(n=4), segment(n=9))
        for windows in ((3, 5), (5, 3)):
            draft = Draft(old, 13)
            for window in windows:
                draft.changed(window)
            assert draft.keep(1).change().parts == (Decode(old[1].tokens[:5]), Keep(9, 13))

    def test_a_new_segment_is_read_and_makes_what_follows_stale(self, engine: ListEngine) -> None:
        old = read(engine, segment(), segment())
        draft = Draft(old, 8).keep(0, 1)
        assert not draft.has_stale
        change = draft.read(segment(n=3)).keep(1).change()
        engine.apply(change.parts)
        check(change, engine)
        assert engine.n_decoded == 3
        assert [one.freshness for one in change.segments] == [Freshness.FRESH, Freshness.FRESH, Freshness.STALE]

    @pytest.mark.parametrize("seam", [0, 2, 5])
    def test_a_splice_is_read_up_to_its_seam(self, engine: ListEngine, seam: int) -> None:
        old = read(engine, segment(n=4))
        skill, path = segment(Kind.SKILL, 5, "lamp"), Path("lamp.safetensors")
        engine.artifacts[path] = skill.tokens
        change = Draft(old, 4).keep().splice(skill, path, seam).read(segment(n=2)).change()
        engine.apply(change.parts)
        check(change, engine)
        assert (change.repaired, engine.n_decoded) == (seam, seam + 2)
        assert change.segments[1].seam == seam
        wanted = [Run(seam, Freshness.REPAIRED), Run(5 - seam, Freshness.SPLICED)]
        assert list(change.segments[1].runs) == [run for run in wanted if run.n_tokens]

    def test_what_stands_behind_a_splice_is_stale(self, engine: ListEngine) -> None:
        old = read(engine, segment(n=4), segment(n=3))
        skill, path = segment(Kind.SKILL, 5, "lamp"), Path("lamp.safetensors")
        engine.artifacts[path] = skill.tokens
        change = Draft(old, 7).keep(0, 1).splice(skill, path, 2).splice(skill, path, 1).keep(1).change()
        engine.apply(change.parts)
        check(change, engine)
        assert change.segments[-1].freshness is Freshness.STALE
        assert change.repaired == 3

    def test_a_whole_state_brings_everything_in_front_of_it(self, engine: ListEngine) -> None:
        old = read(engine, segment(n=4), segment(n=3))
        skill, path = segment(Kind.SKILL, 5), Path("whole")
        engine.artifacts[path] = (*all_tokens(old), *skill.tokens)
        draft = Draft(old, 7).restore(skill, path)
        assert draft.change().parts == (Splice(path, 0, 12),)
        engine.apply(draft.change().parts)
        assert engine.tokens == engine.artifacts[path]
        assert draft.change().segments == (*old, skill.with_runs(Run(5, Freshness.SPLICED)))

    def test_reasoning_leaves_and_its_text_stays(self, engine: ListEngine) -> None:
        answer = replace(
            segment(Kind.ASSISTANT, 12),
            reasoning="hm",
            reasoning_start=2,
            reasoning_stop=7,
            content_start=7,
            content_stop=11,
        )
        old = read(engine, segment(n=3), answer, segment(n=2))
        change = Draft(old, 17).keep(0, 1).keep_without_reasoning(1).keep(2).change()
        engine.apply(change.parts)
        check(change, engine)
        said = change.segments[1]
        assert said.tokens == answer.tokens[:2] + answer.tokens[7:]
        assert (said.reasoning, said.reasoning_start, said.reasoning_stop) == ("hm", 0, 0)
        assert said.tokens[said.content_start : said.content_stop] == answer.tokens[7:11]
        assert said.runs == (Run(2, Freshness.FRESH), Run(5, Freshness.STALE))
        assert engine.n_decoded == 0

    def test_runs_of_a_stale_answer_are_cut_where_its_reasoning_was(self, engine: ListEngine) -> None:
        old = read(engine, segment(n=3), segment(Kind.ASSISTANT, 9))
        mixed = replace(
            old[1],
            reasoning_start=2,
            reasoning_stop=5,
            runs=(Run(1, Freshness.FRESH), Run(3, Freshness.STALE), Run(5, Freshness.SPLICED)),
        )
        change = Draft((old[0], mixed), 12).keep(0, 1).keep_without_reasoning(1).change()
        assert change.segments[1].runs == (Run(1, Freshness.FRESH), Run(5, Freshness.STALE))


class TestFields:
    @pytest.mark.parametrize("value", ["", "A", "Bob", "Somebody else"])
    @pytest.mark.parametrize("window", [0, 2, EVERYTHING])
    def test_every_place_of_a_field_gets_the_new_value(self, value: str, window: int) -> None:
        engine = ListEngine()
        old = read(
            engine,
            replace(with_fields(Kind.SKILL, ("who", "Ada"), ("city", "Oslo"), ("who", "Ada")), artifact="x", seam=1),
            segment(n=3),
            with_fields(Kind.USER, ("city", "Oslo"), ("who", "Eve"), ("who", value)),
        )
        change = Draft(old, len(engine.rows)).keep_with_field("who", value, spell, words, window=window).change()
        engine.apply(change.parts)
        check(change, engine)
        for before, after in zip(old, change.segments, strict=True):
            assert [(s.name, s.value) for s in after.fields] == [
                (s.name, value if s.name == "who" else s.value) for s in before.fields
            ]
            for span in after.fields:
                assert after.tokens[span.start : span.stop] == spell(span.value)
            plain = [t for t in before.tokens if t >= 10_000]
            assert [t for t in after.tokens if t >= 10_000] == plain
            if after.fields:
                assert after.text == words(after.tokens[1:-1])
                assert (after.content_start, after.content_stop) == (1, after.n_tokens - 1)
        assert change.segments[0].artifact is None, "the artifact holds the old value"
        edited = [r.n_tokens for one in change.segments for r in one.runs if r.freshness is Freshness.EDITED]
        assert sum(edited) == 3 * len(value)
        if window == EVERYTHING:
            assert all(r.freshness is not Freshness.STALE for one in change.segments for r in one.runs)
        elif window == 0:
            assert engine.n_decoded == 3 * len(value)

    def test_a_value_that_stands_there_already_changes_nothing(self) -> None:
        engine = ListEngine()
        old = read(engine, with_fields(Kind.SKILL, ("who", "Ada")), segment())
        change = Draft(old, len(engine.rows)).keep_with_field("who", "Ada", spell, words).change()
        assert change.segments == old
        assert change.parts == (Keep(0, len(engine.rows)),)

    @pytest.mark.parametrize("window", [0, 3])
    def test_an_erratum_goes_as_the_value_comes(self, window: int) -> None:
        engine = ListEngine()
        old = read(engine, segment(n=2), segment(Kind.ERRATUM, 5, "who"), segment(n=6))
        change = Draft(old, 13).keep_with_field("who", "x", spell, words, window=window, without=1).change()
        engine.apply(change.parts)
        check(change, engine)
        assert [one.tokens for one in change.segments] == [old[0].tokens, old[2].tokens]
        assert engine.n_decoded == window

    def test_the_erratum_said_last_counts(self) -> None:
        def erratum(name: str, value: str) -> Segment:
            return replace(segment(Kind.ERRATUM, name=name), value=value)

        segments = [
            with_fields(Kind.SKILL, ("who", "Ada"), ("city", "Oslo")),
            with_fields(Kind.USER, ("who", "Eve"), ("day", "Monday")),
            erratum("who", "Bob"),
            erratum("who", "Kim"),
            erratum("nobody", "x"),
            replace(segment(Kind.SKILL, name="city"), value="Rome"),
        ]
        assert field_values(segments) == {"who": "Kim", "city": "Oslo", "day": "Monday"}


class TestASystemTextThatOpensTheQuestion:
    SYSTEM = replace(segment(Kind.SYSTEM, 4), content_stop=4)

    def question(self, *, own_opening: bool) -> Segment:
        plain = with_fields(Kind.USER, ("who", "Ada"))
        return JOINT.opened(plain) if own_opening else plain

    def change(self, engine: ListEngine, draft: Draft) -> tuple[Segment, ...]:
        change = draft.change()
        engine.apply(change.parts)
        check(change, engine)
        return change.segments

    def test_stays_joined_to_the_question_that_continues_it(self) -> None:
        engine = ListEngine()
        draft = Draft((), 0, JOINT).read(self.SYSTEM).read(self.question(own_opening=False))
        system, _ = self.change(engine, draft)
        assert system.tokens == self.SYSTEM.tokens

    def test_is_closed_once_where_something_else_follows(self) -> None:
        engine = ListEngine()
        skill, path = segment(Kind.SKILL, 5), Path("a")
        engine.artifacts[path] = skill.tokens
        question = self.question(own_opening=True)
        segments = self.change(engine, Draft((), 0, JOINT).read(self.SYSTEM).splice(skill, path, 1).read(question))
        wanted = [(*self.SYSTEM.tokens, *JOINT.closing), skill.tokens, question.tokens]
        assert [one.tokens for one in segments] == wanted

    @pytest.mark.parametrize("with_field", [True, False])
    def test_a_question_left_without_it_is_opened(self, with_field: bool) -> None:
        engine = ListEngine()
        question = self.question(own_opening=False)
        old = self.change(engine, Draft((), 0, JOINT).read(self.SYSTEM).read(question).read(segment(Kind.ASSISTANT)))
        draft = Draft(old, len(engine.rows), JOINT)
        if with_field:
            draft.keep_with_field("who", "Grace", spell, words, without=0)
        else:
            draft.changed().keep(1)
        opened = self.change(engine, draft)[0]
        assert opened.tokens[:2] == JOINT.opening
        (span,) = opened.fields
        assert opened.tokens[span.start : span.stop] == spell(span.value)
        assert span.value == ("Grace" if with_field else "Ada")
        assert opened.tokens[opened.content_start : opened.content_stop] == opened.tokens[3:-1]

    @pytest.mark.parametrize("opens", [True, False])
    def test_a_field_of_a_question_is_replaced_where_the_question_stays_as_it_was(self, opens: bool) -> None:
        engine = ListEngine()
        first = replace(self.SYSTEM, kind=Kind.SKILL) if opens else self.SYSTEM
        old = self.change(engine, Draft((), 0, JOINT).read(first).read(self.question(own_opening=opens)))
        draft = Draft(old, len(engine.rows), JOINT).keep_with_field("who", "Grace", spell, words)
        _, question = self.change(engine, draft)
        assert question.n_tokens == old[1].n_tokens + len("Grace") - len("Ada")
        (span,) = question.fields
        assert question.tokens[span.start : span.stop] == spell("Grace")
        assert (question.tokens[:2] == JOINT.opening) is opens

    def test_parting_them_makes_the_question_stale(self) -> None:
        engine = ListEngine()
        old = self.change(engine, Draft((), 0, JOINT).read(self.SYSTEM).read(self.question(own_opening=False)))
        segments = self.change(engine, Draft(old, len(engine.rows), JOINT).keep(0, 1).read(segment(Kind.SKILL)).keep(1))
        assert [run.freshness for run in segments[2].runs] == [Freshness.FRESH, Freshness.STALE]
        assert segments[2].runs[0].n_tokens == 2
        assert segments[0].tokens[-2:] == JOINT.closing


class TestRebuild:
    @pytest.fixture
    def engine(self) -> ListEngine:
        return ListEngine()

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "lamp.safetensors"
        path.touch()
        return path

    def skill(self, engine: ListEngine, path: Path, *runs: Run, seam: int = 2) -> Segment:
        """A skill of ten tokens from ``path``, with the freshness that it had."""
        runs = runs or (Run(seam, Freshness.REPAIRED), Run(10 - seam, Freshness.SPLICED))
        one = replace(segment(Kind.SKILL, 10, "lamp"), artifact=str(path), seam=seam, runs=runs)
        engine.artifacts[path] = one.tokens
        return one

    @pytest.mark.parametrize(
        "runs",
        [
            (),
            (Run(2, Freshness.REPAIRED), Run(8, Freshness.STALE)),
            (Run(4, Freshness.FRESH), Run(6, Freshness.STALE)),
            (Run(9, Freshness.FRESH), Run(1, Freshness.SPLICED)),
        ],
        ids=["spliced", "stale", "partly computed anew", "all but one computed anew"],
    )
    def test_a_skill_not_wholly_computed_anew_is_spliced_again(
        self, engine: ListEngine, path: Path, runs: tuple[Run, ...]
    ) -> None:
        chat = (segment(n=3), self.skill(engine, path, *runs), segment(n=2))
        change = rebuild(chat, [])
        engine.apply(change.parts)
        check(change, engine)
        assert change.segments[1].runs == (Run(2, Freshness.REPAIRED), Run(8, Freshness.SPLICED))
        assert (change.repaired, engine.n_decoded) == (2, 3 + 2 + 2)

    def test_rows_computed_anew_are_better_than_the_artifact(self, engine: ListEngine, path: Path) -> None:
        change = rebuild((segment(n=3), self.skill(engine, path, Run(10, Freshness.FRESH))), [])
        engine.apply(change.parts)
        check(change, engine)
        assert (change.repaired, engine.n_decoded) == (0, 13)

    @pytest.mark.parametrize("why", ["gone", "never had one", "forbidden"])
    def test_without_an_artifact_a_skill_is_read(self, engine: ListEngine, path: Path, why: str) -> None:
        skill = self.skill(engine, path)
        if why == "gone":
            path.unlink()
        elif why == "never had one":
            skill = replace(skill, artifact=None)
        change = rebuild((segment(n=3), skill), [], from_artifacts=why != "forbidden")
        engine.apply(change.parts)
        check(change, engine)
        assert engine.n_decoded == 13
        assert change.segments[1].runs == (Run(10, Freshness.FRESH),)

    @pytest.mark.parametrize("n_held", range(16))
    def test_what_agrees_at_the_beginning_stays(self, engine: ListEngine, path: Path, n_held: int) -> None:
        chat = (segment(n=3), self.skill(engine, path), segment(n=2))
        engine.decode([*all_tokens(chat)[:n_held], *fresh_tokens(3)])
        before = engine.rows[:n_held]
        change = rebuild(chat, engine.tokens)
        engine.apply(change.parts)
        assert engine.tokens == tuple(all_tokens(chat))
        assert engine.rows[:n_held] == before
        missing = range(
            n_held, 15
        )  # what is not there is computed, but for the rows behind the seam, which the artifact has
        assert change.repaired == sum(3 <= at < 5 for at in missing)
        assert engine.n_decoded == sum(not 5 <= at < 13 for at in missing)
        assert change.segments[1].runs == (Run(2, Freshness.REPAIRED), Run(8, Freshness.SPLICED))

    @pytest.mark.parametrize("n_held", [0, 2, 3, 8, 12, 13, 15])
    def test_whole_states_bring_all_in_front_of_them(self, engine: ListEngine, path: Path, n_held: int) -> None:
        chat = (segment(n=3), self.skill(engine, path, Run(10, Freshness.SPLICED), seam=0), segment(n=2))
        engine.artifacts[path] = (*chat[0].tokens, *chat[1].tokens)
        engine.decode([*all_tokens(chat)[:n_held], *fresh_tokens(1)])
        change = rebuild(chat, engine.tokens, whole_states=True)
        engine.apply(change.parts)
        assert engine.tokens == tuple(all_tokens(chat))
        assert (Splice(path, 0, 13) in change.parts) is (n_held < 13)
        assert engine.n_decoded == (2 if n_held < 13 else 15 - n_held)
        assert change.segments[1].runs == (Run(10, Freshness.SPLICED),)
        assert change.repaired == 0


def test_any_row_of_changes_leaves_every_row_as_its_freshness_says(tmp_path: Path) -> None:
    for seed in range(150):
        rng = random.Random(seed)
        joint = rng.choice([None, JOINT])
        engine = ListEngine()
        segments: tuple[Segment, ...] = ()
        for _ in range(6):
            change = random_change(rng, engine, Draft(segments, len(engine.rows), joint), joint, segments, tmp_path)
            engine.apply(change.parts)
            segments = change.segments
            assert engine.tokens == tuple(all_tokens(segments)), seed
            rows = enumerate(engine.rows)
            for run in (run for one in segments for run in one.runs):
                for at, row in (next(rows) for _ in range(run.n_tokens)):
                    computed = row.artifact is None and row.seen == engine.tokens[:at]
                    told = {Freshness.SPLICED: row.artifact is not None, Freshness.STALE: True}
                    assert told.get(run.freshness, computed), (seed, at, run)
            engine.rows = engine.rows[: len(engine.rows) - rng.randrange(segments[-1].n_tokens + 1)]  # not read yet


def random_change(
    rng: random.Random,
    engine: ListEngine,
    draft: Draft,
    joint: QuestionJoint | None,
    old: Sequence[Segment],
    folder: Path,
) -> Change:
    """Some segments kept, some left out, some new ones read or spliced."""

    def question() -> Segment:
        plain = with_fields(Kind.USER, ("who", rng.choice(["Ada", "Eve"])))
        return joint.opened(plain) if joint else plain

    for index in range(len(old)):
        what = rng.randrange(8)
        if what == 0:
            draft.changed(rng.choice([0, 3, EVERYTHING]))
            continue
        if what == 1:
            draft.read(question())
        elif what == 2:
            skill = segment(Kind.SKILL, rng.randrange(1, 9))
            path = folder / str(next(_next_token))
            engine.artifacts[path] = skill.tokens
            draft.splice(skill, path, rng.randrange(skill.n_tokens + 1))
        draft.keep(index, index + 1)
    last = rng.choice([question(), segment(Kind.SYSTEM, rng.randrange(2, 6)), segment(Kind.ASSISTANT, 3)])
    return draft.read(last).change()


def test_a_skill_is_found_by_its_name_and_kind() -> None:
    segments = [segment(Kind.ERRATUM, name="lamp"), segment(Kind.SKILL, name="oven"), segment(Kind.SKILL, name="lamp")]
    assert find_skill(segments, "lamp") == 2
    assert find_skill(segments, "oven") == 1
    assert find_skill(segments, "door") is None


@pytest.mark.parametrize(
    ("a", "b", "n"),
    [("", "", 0), ("a", "", 0), ("abc", "abd", 2), ("abc", "abcde", 3), ("xbc", "abc", 0), ("ab", "ab", 2)],
)
def test_what_two_sequences_have_in_common_ends_at_the_first_difference(a: str, b: str, n: int) -> None:
    assert common_length(spell(a), spell(b)) == common_length(spell(b), spell(a)) == n
