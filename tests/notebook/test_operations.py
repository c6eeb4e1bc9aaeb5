"""Random sequences of operations: chat and engine stay in step, and what can be taken back is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from kvnotes_local.contract.plan import Decode
from kvnotes_local.engine.llama_engine import LlamaEngine
from kvnotes_local.errors import UsageError
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.notebook.segment import Freshness, Kind
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary
from tests.conftest import both_engines

MakeEngine = Callable[..., LlamaEngine]
SKILLS = {
    "budget": "The budget limit is {{limit|900 euros}}. Ask {{person|Ada}} about anything above it. Keep receipts.",
    "lamp": "The lamp on the quay is green. It is lit from dusk to dawn.",
    "rules": "Answer in one line. Sign with {{person|Ada}}.",
}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> SkillLibrary:
    folder = tmp_path_factory.mktemp("skills")
    for name, text in SKILLS.items():
        (folder / name).mkdir()
        (folder / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {name}\n---\n{text}\n")
    return SkillLibrary([folder])


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    return ArtifactStore(tmp_path_factory.mktemp("artifacts"))


@dataclass
class Desk:
    """An engine and what makes notebooks on it."""

    engine: LlamaEngine
    library: SkillLibrary
    store: ArtifactStore
    notices: list[str] = field(default_factory=list)

    def notebook(self, **how: object) -> Notebook:
        compiler = SkillCompiler(self.engine, self.store, n_leads=1)
        how.setdefault("system", "You help. The budget limit is {{limit|900 euros}}.")
        return Notebook(self.engine, library=self.library, compiler=compiler, on_notice=self.notices.append, **how)  # type: ignore[arg-type]

    def logits(self, notebook: Notebook) -> np.ndarray:
        """Logits after one more token behind the chat."""
        twin = notebook.fork()
        try:
            return twin.ask("?", max_tokens=1, keep_logits=True).first_logits  # type: ignore[return-value]
        finally:
            twin.close()


@pytest.fixture
def desk(tiny_engine: MakeEngine, library: SkillLibrary, store: ArtifactStore) -> Desk:
    return Desk(tiny_engine("llama", n_ctx=4096), library, store)


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max() <= 2e-3 * np.abs(b).max())


Operation = Callable[[Notebook], object]


def random_operation(rng: random.Random) -> Operation:
    """One operation, decided completely by ``rng`` and the notebook's segments, so that it can be played twice."""
    name = rng.choice(
        ["ask", "say", "splice", "drop", "set", "edit", "delete", "undo", "redo", "regenerate", "resend", "read"]
    )
    pick = rng.random()
    value = rng.choice(["900 euros", "1,250 euros", "no limit at all, as long as somebody signs for it", "x"])
    level = rng.choice([level for level in EditLevel if level is not EditLevel.AUTO])
    skill = rng.choice(list(SKILLS))
    flag = rng.random() < 0.3

    def chosen(indices: list[int]) -> int:
        if not indices:
            raise UsageError("nothing to choose from")
        return indices[int(pick * len(indices))]

    def play(notebook: Notebook) -> object:
        users = [i for i, s in enumerate(notebook.segments) if s.kind is Kind.USER]
        match name:
            case "ask":
                return notebook.ask(f"What about {value}?", max_tokens=4)
            case "say":
                return notebook.say("A word", "Another word")
            case "splice":
                return notebook.splice(
                    skill, at=chosen(list(range(1, len(notebook.segments) + 1))), repair=int(pick * 5)
                )
            case "drop":
                return notebook.drop(skill, clean=flag)
            case "set":
                names = sorted(notebook.fields)
                return notebook.set(names[chosen(list(range(len(names))))], value, level=level, window=8)
            case "edit":
                return notebook.edit(chosen(users), f"Rather {value}", recompute=flag)
            case "delete":
                return notebook.delete(chosen(list(range(1, len(notebook.segments)))), recompute=flag)
            case "undo":
                return notebook.undo()
            case "redo":
                return notebook.redo()
            case "regenerate":
                return notebook.regenerate(max_tokens=3)
            case "resend":
                return notebook.edit_and_resend(chosen(users), f"Once more: {value}", max_tokens=3)
            case _:
                return notebook.read()

    return play


@pytest.mark.parametrize("seed", range(3))
def test_two_hundred_random_operations_keep_chat_and_engine_in_step(desk: Desk, seed: int) -> None:
    rng = random.Random(seed)
    notebook = desk.notebook()
    played = 0
    for _ in range(200):
        before = notebook.segments
        operation = random_operation(rng)
        if len(notebook.tokens) > 2500:
            notebook.close()
            notebook = desk.notebook()
        try:
            operation(notebook)
            played += 1
        except UsageError:
            assert notebook.segments == before
        notebook.check()
    assert played > 100


@both_engines
@pytest.mark.parametrize("seed", range(10, 12))
def test_the_same_operations_on_a_fresh_engine_give_the_same_logits(
    desk: Desk, tiny_engine: MakeEngine, seed: int
) -> None:
    """The first chat lives in a context full of forks, spares and other chats; the second is alone."""
    crowd = [desk.notebook() for _ in range(2)]
    for other in crowd:
        other.say("noise", "more noise")
        other.read()
    rng = random.Random(seed)
    operations = [random_operation(rng) for _ in range(25)]
    alone = Desk(tiny_engine("llama", n_ctx=4096), desk.library, desk.store)
    notebooks = [desk.notebook(), alone.notebook()]
    for operation in operations:
        for notebook in notebooks:
            try:
                operation(notebook)
            except UsageError:
                continue
    assert notebooks[0].segments == notebooks[1].segments
    assert close(desk.logits(notebooks[0]), alone.logits(notebooks[1]))


def test_a_chat_that_was_only_read_has_the_logits_of_reading_it_at_once(desk: Desk) -> None:
    notebook = desk.notebook()
    notebook.say("One", "Two")
    notebook.read()
    notebook.say("Three", "Four")
    notebook.splice("lamp", read=True)
    found = desk.logits(notebook)
    fresh = desk.engine.new_sequence()
    twin = notebook.fork()
    twin.ask("?", max_tokens=1)
    n = len(twin.tokens) - twin.segments[-1].n_tokens + twin.segments[-1].content_start
    desk.engine.apply(fresh, [Decode(tuple(twin.tokens[:n]))])
    assert close(found, desk.engine.logits(fresh))


def test_skills_in_company_are_said_to_be_measured_alone(desk: Desk) -> None:
    first, second = list(SKILLS)[:2]
    notebook = desk.notebook()
    notebook.splice(first)
    assert desk.notices == []
    notebook.splice(second)
    (notice,) = desk.notices
    assert f"kvnotes verify --together {first},{second}" in notice
    desk.notices.clear()
    notebook.splice(second)  # there already
    read = desk.notebook()
    read.splice(first, read=True)
    read.splice(second)  # the only one that is spliced
    assert desk.notices == []


def test_full_edit_and_clean_drop_leave_what_reading_afresh_would_give(desk: Desk) -> None:
    edited = desk.notebook()
    edited.say("One", "Two")
    edited.splice("lamp", at=1, read=True)
    edited.read()
    edited.set("limit", "12 euros", level=EditLevel.FULL)
    edited.drop("lamp", clean=True)
    fresh = desk.notebook(values={"limit": "12 euros"})
    fresh.say("One", "Two")
    assert edited.tokens == fresh.tokens
    assert close(desk.logits(edited), desk.logits(fresh))
    assert all(run.freshness is not Freshness.STALE for segment in edited.segments for run in segment.runs)


def test_another_system_text_leaves_what_beginning_with_it_would_give(desk: Desk) -> None:
    changed, fresh = desk.notebook(system="Be brief."), desk.notebook(system="Answer like a sailor of old.")
    for notebook in (changed, fresh):
        notebook.splice("lamp", repair=2)
        notebook.say("One", "Two")
        notebook.read()
    before = changed.segments
    changed.set_system("Answer like a sailor of old.")
    changed.check()
    assert changed.segments == fresh.segments
    assert close(desk.logits(changed), desk.logits(fresh))
    assert changed.undo()
    assert changed.segments == before
    changed.set_system("")
    changed.check()
    assert changed.tokens == desk_without_system(desk).tokens


def desk_without_system(desk: Desk) -> Notebook:
    notebook = desk.notebook(system="")
    notebook.splice("lamp", repair=2)
    notebook.say("One", "Two")
    return notebook


# -- what each operation decodes, counted --------------------------------------------------------------------------------


def started(desk: Desk) -> Notebook:
    notebook = desk.notebook()
    notebook.splice("budget", repair=0)
    notebook.say("How much may I spend?", "900 euros.")
    notebook.read()
    notebook.forget_cost()
    return notebook


def test_an_erratum_keeps_the_whole_cache(desk: Desk) -> None:
    notebook = started(desk)
    n = len(notebook.tokens)
    held = desk.engine.tokens(notebook._cache.seq)
    result = notebook.set("limit", "5 euros", level=EditLevel.ERRATUM)
    assert (result.decoded, result.moved) == (notebook.segments[-1].n_tokens, 0)
    assert desk.engine.tokens(notebook._cache.seq)[:n] == held


@pytest.mark.parametrize("value", ["5 euros", "900 pounds", "one thousand two hundred and fifty euros and no cents"])
def test_a_field_edit_decodes_only_the_field(desk: Desk, value: str) -> None:
    notebook = started(desk)
    spans = [span for segment in notebook.segments for span in segment.fields if span.name == "limit"]
    assert len(spans) == 2  # in the system text and in the skill
    result = notebook.set("limit", value, level=EditLevel.FIELD)
    assert result.decoded == 2 * len(desk.engine.tokenize(value))
    assert notebook.fields["limit"] == value
    assert value in notebook.segments[0].text
    assert value in notebook.segments[1].text
    notebook.check()


def test_a_window_decodes_the_field_the_window_and_an_erratum(desk: Desk) -> None:
    notebook = started(desk)
    result = notebook.set("limit", "5 euros", level=EditLevel.WINDOW, window=10)
    n_value = 2 * len(desk.engine.tokenize("5 euros"))
    erratum = notebook.segments[-1]
    assert erratum.kind is Kind.ERRATUM
    assert result.decoded == n_value + 20 + erratum.n_tokens
    notebook.undo()
    everything = notebook.set("limit", "5 euros", level=EditLevel.WINDOW, window=10_000)
    assert notebook.segments[-1].kind is not Kind.ERRATUM
    assert everything.moved == 0


def test_a_later_edit_leaves_one_erratum_with_the_current_value(desk: Desk) -> None:
    notebook = started(desk)
    for value in ("5 euros", "6 euros"):
        notebook.set("limit", value)
    notebook.say("And?", "Well.")
    notebook.set("limit", "900 euros")
    errata = [segment for segment in notebook.segments if segment.kind is Kind.ERRATUM]
    assert [erratum.value for erratum in errata] == ["900 euros"]
    assert notebook.segments[-1].kind is Kind.ERRATUM
    notebook.check()


def test_dropping_a_skill_moves_what_follows_and_says_so(desk: Desk) -> None:
    notebook = started(desk)
    skill = notebook.segments[1]
    n = len(notebook.tokens)
    cost = notebook.drop("budget")
    erratum = notebook.segments[-1]
    assert "budget" not in notebook.skills
    assert erratum.kind is Kind.ERRATUM
    assert len(notebook.tokens) == n - skill.n_tokens + erratum.n_tokens
    assert (cost.prefilled, cost.spliced) == (erratum.n_tokens, 0)
    assert all(segment.freshness is Freshness.STALE for segment in notebook.segments[1:-1])
    notebook.check()


def test_changing_or_deleting_a_turn_says_what_it_cost(desk: Desk) -> None:
    notebook = started(desk)
    index = next(i for i, segment in enumerate(notebook.segments) if segment.kind is Kind.USER)
    notebook.read()
    tail = sum(segment.n_tokens for segment in notebook.segments[index + 1 :])
    cost = notebook.edit(index, "Quite another question, and a longer one?")
    assert (cost.prefilled, cost.moved) == (notebook.segments[index].n_tokens, tail)
    cost = notebook.edit(index, "Short?", recompute=True)
    assert (cost.prefilled, cost.moved) == (notebook.segments[index].n_tokens + tail, 0)
    cost = notebook.delete(index)
    assert (cost.prefilled, cost.moved) == (0, tail)
    notebook.check()


def test_a_skill_put_between_turns_moves_the_tail_and_marks_it(desk: Desk) -> None:
    notebook = desk.notebook()
    notebook.say("One", "Two")
    notebook.say("Three", "Four")
    notebook.read()
    notebook.forget_cost()
    tail = sum(segment.n_tokens for segment in notebook.segments[3:])
    notebook.splice("lamp", at=3, repair=2)
    cost = notebook._cache.cost
    assert (cost.prefilled, cost.repaired, cost.moved) == (0, 2, tail)
    assert [segment.freshness for segment in notebook.segments[4:]] == [Freshness.STALE] * 2
    notebook.check()


@both_engines
def test_undo_and_redo_compute_nothing(desk: Desk) -> None:
    notebook = started(desk)
    before = notebook.segments
    logits = desk.logits(notebook)
    notebook.set("limit", "5 euros")
    after = notebook.segments
    notebook.forget_cost()
    assert notebook.undo()
    assert notebook.segments == before
    assert close(desk.logits(notebook), logits)
    assert notebook.redo()
    assert notebook.segments == after
    assert notebook._cache.cost.prefilled == notebook._cache.cost.moved == 0
    notebook.check()


def test_undo_goes_back_to_the_beginning_also_where_rows_were_given_up(desk: Desk) -> None:
    notebook = desk.notebook()
    states = [notebook.segments]
    for number in range(12):
        notebook.say(f"Word {number}", "Yes")
        states.append(notebook.segments)
    for state in reversed(states[:-1]):
        assert notebook.undo()
        assert [s.text for s in notebook.segments] == [s.text for s in state]
        notebook.check()
    assert not notebook.undo()


def test_a_fork_goes_its_own_way_and_copies_nothing(desk: Desk) -> None:
    notebook = started(desk)
    fork = notebook.fork(2)
    fork.ask("Something else?", max_tokens=2)
    assert notebook.segments[:2] == fork.segments[:2]
    assert fork.segments[2].text == "Something else?"
    notebook.check()
    fork.check()
    fork.close()
    notebook.check()


def test_auto_says_what_it_chose_and_stays_within_reach(desk: Desk) -> None:
    notebook = started(desk)
    notebook.set("limit", "5 euros", level=EditLevel.AUTO)
    reply = notebook.ask("How much may I spend?", max_tokens=2)
    (edit,) = reply.edits
    assert edit.level in {EditLevel.ERRATUM, EditLevel.FIELD_ERRATUM, EditLevel.FULL}
    assert edit.reason
    assert edit.decoded > 0
    assert notebook.fields["limit"] == "5 euros"
    assert not notebook.ask("And?", max_tokens=1).edits
    notebook.check()


def test_mistakes_change_nothing(desk: Desk) -> None:
    notebook = started(desk)
    before = notebook.segments
    for mistake in (
        lambda: notebook.set("limits", "1"),
        lambda: notebook.drop("lamp"),
        lambda: notebook.edit(0, "x"),
        lambda: notebook.delete(99),
        lambda: notebook.splice("rules", at=0),
        lambda: notebook.fork(99),
    ):
        with pytest.raises(UsageError):
            mistake()
        assert notebook.segments == before
    notebook.check()


@pytest.mark.parametrize("name", ["gemma3", "qwen2", "deepseek2", "gpt-oss"])
def test_operations_work_on_other_layouts(
    tiny_engine: MakeEngine, library: SkillLibrary, store: ArtifactStore, name: str
) -> None:
    desk = Desk(tiny_engine(name, n_ctx=2048), library, store)
    rng = random.Random(7)
    notebook = desk.notebook()
    for _ in range(40):
        try:
            random_operation(rng)(notebook)
        except UsageError:
            continue
        notebook.check()


def test_a_prefix_only_model_restores_at_the_start_and_reads_later(
    tiny_engine: MakeEngine, library: SkillLibrary, tmp_path: Path
) -> None:
    desk = Desk(tiny_engine("falcon-h1", n_ctx=2048), library, ArtifactStore(tmp_path))
    at_start = desk.notebook()
    at_start.splice("lamp")
    assert at_start._cache.cost.spliced == len(at_start.tokens)
    later = desk.notebook()
    later.say("One", "Two")
    later.splice("lamp")
    assert later._cache.cost.spliced == 0
    assert "read now" in desk.notices[-1]
    read = desk.notebook()
    read.splice("lamp", read=True)
    assert close(desk.logits(at_start), desk.logits(read))


@pytest.mark.parametrize("name", ["falcon-h1", "mamba", "granitehybrid"])
def test_prefix_only_models_go_back_to_checkpoints(
    tiny_engine: MakeEngine, library: SkillLibrary, tmp_path: Path, name: str
) -> None:
    desk = Desk(tiny_engine(name, n_ctx=2048), library, ArtifactStore(tmp_path))
    notebook = desk.notebook()
    notebook.ask("First?", max_tokens=4)
    notebook.ask("Second?", max_tokens=4)
    length = len(notebook.tokens)
    reply = notebook.regenerate(max_tokens=4)
    # Back to the beginning of the second question, not to the beginning of the chat.
    assert reply.proof.reused > 0
    assert reply.proof.prefilled < length / 2
    notebook.undo()
    notebook.check()
    fork = notebook.fork(3)
    fork.ask("Other?", max_tokens=3)
    fork.check()
    fresh = desk.notebook()
    fresh._chat.segments = (*fresh.segments, *fork.segments[1:])
    assert close(desk.logits(fork), desk.logits(fresh))


@pytest.mark.parametrize("name", ["falcon-h1", "mamba"])
def test_random_operations_on_prefix_only_models(
    tiny_engine: MakeEngine, library: SkillLibrary, tmp_path: Path, name: str
) -> None:
    desk = Desk(tiny_engine(name, n_ctx=4096), library, ArtifactStore(tmp_path))
    rng = random.Random(3)
    notebook = desk.notebook()
    for _ in range(60):
        try:
            random_operation(rng)(notebook)
        except UsageError:
            continue
        notebook.check()
    fresh = desk.notebook()
    fresh._chat.segments = notebook.segments
    # Nothing is ever moved in such a memory, so the logits are those of reading the chat afresh.
    assert close(desk.logits(notebook), desk.logits(fresh))
