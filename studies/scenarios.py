"""Whole chats against recompute: one field toggled many times, and an agent that takes in skills and changes their fields.

Both are episodes, so each question is compared with reading everything afresh, with the fields' present values in place.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvnotes_local.contract.protocol import Engine
from kvnotes_local.evaluation.decision_cases import DecisionText
from kvnotes_local.evaluation.episode import Compared, Episode, Step, StepReport, play
from kvnotes_local.notebook.edit import EditLevel
from kvnotes_local.notebook.notebook import Notebook
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary

N_TOGGLES = 28

Tell = Callable[[str], None]


@dataclass(frozen=True)
class ScenarioRow:
    """Questions of one scenario. ``same``: decided as recompute decides; ``right``: as the field's value demands, here and by
    recompute. ``first_half``, ``second_half``: mean cosines, to see drift. Milliseconds until the first token: medians."""

    name: str
    n: int
    same: int
    right: int
    recompute_right: int
    cosine: float
    cosine_min: float
    kl: float
    first_half: float
    second_half: float
    first_token_ms: float
    recompute_ms: float

    @property
    def speedup(self) -> float:
        return self.recompute_ms / self.first_token_ms


def toggle(
    engine: Engine,
    text: DecisionText,
    level: EditLevel,
    *,
    n: int = N_TOGGLES,
    apart: bool = False,
    tell: Tell = lambda what: None,
) -> ScenarioRow:
    """The first field of a text set to its other value and back, ``n`` times, with a question after each. ``apart``: each
    question is taken back, so that no answer stands in the chat for the next one to follow."""
    case = text.cases[0]
    steps: list[Step] = []
    expected = []
    for i in range(n):
        which = (i + 1) % 2
        expected.append(case.answers[which])
        steps.append(Step(len(steps) + 1, "set", {case.field: case.values[which]}, {"level": level.value}))
        steps.append(Step(len(steps) + 1, "ask", case.ask, {"choices": list(case.answers), "max_tokens": 1}))
        if apart:
            steps.append(Step(len(steps) + 1, "undo", 1, {}))
    notebook = Notebook(engine, system=text.text)
    try:
        notebook.read()
        notebook.forget_cost()
        reports = play(Episode(text.text, tuple(steps)), notebook, compare=True, told=_telling(tell, text.name))
    finally:
        notebook.close()
    return _row(f"{text.name}, {level.value}", reports, expected)


def agent(engine: Engine, texts: Sequence[DecisionText], *, tell: Tell = lambda what: None) -> list[ScenarioRow]:
    """For each text, as a skill: splice and ask; change its field and ask again; change another field and ask about that."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        library = _skills(Path(folder) / "skills", texts)
        compiler = SkillCompiler(engine, ArtifactStore(Path(folder) / "artifacts"))
        for number, text in enumerate(texts):
            name = f"domain-{number}"
            compiler.compile(library.get(name))
            first, second = text.cases[:2]
            ask = {"max_tokens": 1}
            steps = (
                Step(1, "say", "Good morning.", {"answer": "Good morning. What are the rules today?"}),
                Step(2, "splice", name, {}),
                Step(3, "ask", first.ask, {**ask, "choices": list(first.answers)}),
                Step(4, "set", {first.field: first.values[1]}, {}),
                Step(5, "ask", first.ask, {**ask, "choices": list(first.answers)}),
                Step(6, "set", {second.field: second.values[1]}, {}),
                Step(7, "ask", second.ask, {**ask, "choices": list(second.answers)}),
            )
            notebook = Notebook(engine, library=library, compiler=compiler)
            try:
                notebook.read()
                reports = play(Episode(None, steps), notebook, compare=True, told=_telling(tell, text.name))
            finally:
                notebook.close()
            rows.append(_row(text.name, reports, [first.answers[0], first.answers[1], second.answers[1]]))
    return rows


def _skills(folder: Path, texts: Sequence[DecisionText]) -> SkillLibrary:
    for number, text in enumerate(texts):
        target = folder / f"domain-{number}"
        target.mkdir(parents=True)
        head = f"---\nname: domain-{number}\ndescription: Rules that decide a question.\n---\n"
        (target / "SKILL.md").write_text(f"{head}{text.text}\n", "utf-8")
    return SkillLibrary([folder])


def _telling(tell: Tell, name: str) -> Callable[[StepReport], None]:
    return lambda report: tell(f"{name}: step {report.step.number}, {report.step.action}")


def _row(name: str, reports: Sequence[StepReport], expected: Sequence[str]) -> ScenarioRow:
    compared: list[Compared] = [one.compared for one in reports if one.compared is not None]
    cosines = np.array([one.cosine for one in compared])
    half = len(compared) // 2
    return ScenarioRow(
        name=name,
        n=len(compared),
        same=sum(one.decision == one.recompute_decision for one in compared),
        right=sum(one.decision == answer for one, answer in zip(compared, expected, strict=True)),
        recompute_right=sum(one.recompute_decision == answer for one, answer in zip(compared, expected, strict=True)),
        cosine=float(cosines.mean()),
        cosine_min=float(cosines.min()),
        kl=float(np.mean([one.kl for one in compared])),
        first_half=float(cosines[: max(1, half)].mean()),
        second_half=float(cosines[half:].mean()),
        first_token_ms=float(np.median([one.ttft_ms for one in compared])),
        recompute_ms=float(np.median([one.recompute_ms for one in compared])),
    )
