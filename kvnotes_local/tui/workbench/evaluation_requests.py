"""Measuring: splices against reading, speed, and where the notes are. The open chat is put aside meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvnotes_local.errors import KvnotesError
from kvnotes_local.tui.news import BenchDone, ChatVerified, Notice, ProbeDone, SkillVerified
from kvnotes_local.tui.workbench.chat_requests import open_on_desk
from kvnotes_local.tui.workbench.desk import EngineDesk, EngineRequest
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from kvnotes_local.evaluation.gate import GateResult

BENCH_LENGTHS = (256, 512, 1024, 2048)
BENCH_REPEAT = 3


@contextmanager
def chat_aside(desk: EngineDesk) -> Iterator[None]:
    """The whole context is free; afterwards the chat is as it was."""
    chat = desk.chat.id if desk.is_stored else "new"
    desk.leave_chat()
    try:
        yield
    finally:
        open_on_desk(desk, chat)


@dataclass(frozen=True)
class VerifySkill(EngineRequest):
    """Measure splicing a skill against reading it, and keep the verdict."""

    name: str

    @property
    def what(self) -> str:
        return f"Verifying {self.name}"

    def run(self, desk: EngineDesk) -> None:
        from kvnotes_local.evaluation.verification import verify_skill

        model = desk.model
        model.library.refresh()
        skill = model.library.get(self.name)
        with chat_aside(desk):
            result = verify_skill(
                model.engine,
                model.compiler,
                skill,
                model.verdicts,
                other=desk.model.open_other,
                progress=desk.progress,
                step=desk.step,
            )
        desk.tell(Notice(gate_text(self.name, result)))
        desk.tell(SkillVerified(self.name, result))


@dataclass(frozen=True)
class VerifyChat(EngineRequest):
    """Compare the answers of the open chat with what reading it afresh would have said."""

    @property
    def what(self) -> str:
        return "Comparing the chat with reading it afresh"

    def run(self, desk: EngineDesk) -> None:
        from kvnotes_local.evaluation.live_check import check_chat, live_answers

        notebook = desk.chat.notebook
        answers = live_answers(notebook)
        desk.step("loading a second engine")
        with desk.model.open_other() as spare:
            check = check_chat(notebook.segments, answers, spare, step=desk.step)
        desk.tell(ChatVerified(check))


@dataclass(frozen=True)
class RunBench(EngineRequest):
    """Measure the time to the first token by how a skill came into the chat."""

    lengths: tuple[int, ...] = BENCH_LENGTHS
    repeat: int = BENCH_REPEAT

    @property
    def what(self) -> str:
        return "Measuring speed"

    def run(self, desk: EngineDesk) -> None:
        from kvnotes_local.evaluation.bench import run_bench

        engine = desk.model.engine
        info = engine.info
        lengths = [n for n in self.lengths if 2 * n < info.n_ctx] or [info.n_ctx // 4]
        with chat_aside(desk):
            rows = run_bench(engine, lengths=lengths, repeat=self.repeat, edits=False, step=desk.step)
        desk.tell(BenchDone(info.setting, tuple(rows)))


@dataclass(frozen=True)
class RunProbe(EngineRequest):
    """Find out which rows carry a decision, in the first of the bundled cases that works for this model."""

    trials: int = 96

    @property
    def what(self) -> str:
        return "Probing for notes"

    def run(self, desk: EngineDesk) -> None:
        from kvnotes_local.evaluation.decision_cases import decision_texts
        from kvnotes_local.evaluation.probe import decision_probe_cases, probe

        engine = desk.model.engine
        info = engine.info
        with chat_aside(desk):
            cases = decision_probe_cases(engine, decision_texts())
            for number, case in enumerate(cases, start=1):
                desk.step(f"{case.name}")
                try:
                    found = probe(engine, case, max_trials=self.trials, step=desk.step)
                    break
                except KvnotesError as error:
                    if number == len(cases) or desk.stop.is_set():
                        raise
                    desk.tell(Notice(str(error)))  # the next case may decide more clearly
        desk.tell(ProbeDone(info.setting, found))


def gate_text(skill: str, result: GateResult) -> str:
    """A new verdict in one line."""
    best = result.best
    if result.passed:
        return f"{skill} may be spliced with {counted(best.repair_tokens, 'token')} at the seam computed."
    return f"{skill} fails: {'; '.join(best.failures)}. With this model and KV type it is read instead of spliced from now on."
