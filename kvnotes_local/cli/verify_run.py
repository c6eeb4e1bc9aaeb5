"""Measuring skills one after the other, and showing what was found. Imported when a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvnotes_local.cli.output import Output
from kvnotes_local.cli.progress import step_progress
from kvnotes_local.errors import Cancelled, KvnotesError
from kvnotes_local.evaluation.fidelity import Fidelity
from kvnotes_local.evaluation.gate import GateResult, Trial, check_can_splice, flips_within_noise
from kvnotes_local.evaluation.questions import Context, chat_context
from kvnotes_local.evaluation.verification import Effort, verify_skill, verify_together
from kvnotes_local.notebook.stored_chat import check_model
from kvnotes_local.session.places import Places
from kvnotes_local.session.session import Session
from kvnotes_local.skills.evals import load_questions
from kvnotes_local.skills.leads import DEFAULT_N_LEADS
from kvnotes_local.skills.verdicts import VerdictStore
from kvnotes_local.wording import counted


def chat_contexts(
    session: Session, data_dir: Path | None, chat: str | None, skills: Sequence[str]
) -> tuple[Context, ...] | None:
    """The stored chat to measure in; None for the bundled ones. Raises UsageError."""
    if chat is None:
        return None
    stored = Places.usual(data=data_dir).chat_store().load(chat)
    check_model(stored.summary, session.engine.info)
    return (chat_context(chat, stored.segments, skills),)


@dataclass(frozen=True)
class Problem:
    """A skill that could not be measured, and why."""

    skill: str
    error: str


class VerifyRun:
    """Measures one skill after the other and shows each result as soon as it is there. One that cannot be measured does not
    stop the others."""

    def __init__(self, session: Session, output: Output, effort: Effort, verdicts: VerdictStore | None) -> None:
        self._session, self._output, self._effort, self._verdicts = session, output, effort, verdicts
        self.results: list[tuple[str, GateResult]] = []
        self.problems: list[Problem] = []
        check_can_splice(session.engine.info)

    def measure(self, name: str, *, alone: bool) -> None:
        """``alone``: there are no others, so a problem is raised."""
        try:
            result = self._measured(name)
        except KvnotesError as error:
            if alone or isinstance(error, Cancelled) or self._session.stop.is_set():
                raise
            self.problems.append(Problem(name, str(error)))
            self._output.note(f"{name}: {error}")
            return
        self._take(name, result, kept=self._verdicts is not None and (result.passed or self._effort.seams is None))

    def measure_together(self, names: Sequence[str]) -> None:
        session = self._session
        skills = [session.library.get(name) for name in names]
        with step_progress(self._output, session.stop) as step:
            result = verify_together(
                session.engine, session.compiler, skills, other=session.open_other, effort=self._effort, step=step
            )
        self._take(", ".join(names), result, kept=False)

    def _measured(self, name: str) -> GateResult:
        session = self._session
        skill = session.library.get(name)
        n_questions = len(load_questions(skill))
        if n_questions > self._effort.n_questions:
            self._output.note(
                f"{name}: {self._effort.n_questions} of its {counted(n_questions, 'question')} are asked; "
                f"--questions {n_questions} asks all."
            )
        with step_progress(self._output, session.stop) as step:
            return verify_skill(
                session.engine,
                session.compiler,
                skill,
                self._verdicts,
                other=session.open_other,
                effort=self._effort,
                step=lambda what: step(f"{name}: {what}"),
            )

    def _take(self, name: str, result: GateResult, *, kept: bool) -> None:
        self.results.append((name, result))
        _show(self._output, name, result, kept=kept)


def _show(output: Output, name: str, result: GateResult, *, kept: bool) -> None:
    noise = result.noise.fidelity
    best = result.best
    n_tokens = sum(skill.n_tokens for skill in result.skills)
    n_contexts = len(result.reference.contexts)
    n_questions = len(result.reference.asked) // n_contexts
    output.text(
        f"\n{name}: {counted(n_tokens, 'token')}; {counted(n_contexts, 'chat')} × {counted(n_questions, 'question')}, "
        f"{counted(noise.n_positions, 'position')}"
    )
    rows = [
        [
            f"read again ({result.noise.source.value})",
            f"{noise.cosine_mean:.5f}",
            f"{noise.kl_mean:.5f}",
            "1.0" if noise.moved else "–",
            f"{noise.top1_agreement:.3f}",
            _decided(noise),
            "noise floor",
        ]
    ]
    rows += [_row(trial, best, noise) for trial in result.trials]
    output.table(["", "cosine", "mean KL, nats", "× noise", "top-1", "decisions", ""], rows, right=(1, 2, 3, 4, 5))
    it = "together they" if len(result.skills) > 1 else "it"
    output.text(f"{name}: {it} {_verdict(result, kept=kept)}")


def _verdict(result: GateResult, *, kept: bool) -> str:
    """The end of a sentence: may be spliced and how, or why not and what follows."""
    best = result.best
    several = len(result.skills) > 1
    if result.passed:
        each = " of each" if several else ""
        seam = f"with {counted(best.repair_tokens, 'token')} at the seam{each} computed"
        leads = "" if result.n_leads == DEFAULT_N_LEADS else f", compiled behind {counted(result.n_leads, 'lead')} only"
        as_it_is = "as they are" if several else "as it is"
        return f"may be spliced {seam if best.repair_tokens else as_it_is}{leads}."
    why = f"{'fail' if several else 'fails'} the gate: {'; '.join(best.failures)}."
    if several:
        return f"{why} Read them instead (--read-skills)."
    if kept:
        return (
            f"{why} With this model and KV type it is read instead of spliced from now on (--splice-anyway overrules)."
        )
    return f"{why} That is not kept: later splices go on as before. Read it instead (--read-skills)."


def _decided(fidelity: Fidelity, noise: Fidelity | None = None) -> str:
    """Decisions that are the same; those that changed within noise are told apart."""
    if not fidelity.decisions:
        return "–"
    same = sum(one.same for one in fidelity.decisions)
    unclear = 0 if noise is None else len(flips_within_noise(fidelity, noise))
    return f"{same}/{len(fidelity.decisions)}" + (f", {unclear} within noise" if unclear else "")


def _row(trial: Trial, best: Trial, noise: Fidelity) -> list[str]:
    one = trial.fidelity
    said = ("passes" if trial.passed else "fails") + (", chosen" if trial is best and trial.passed else "")
    return [
        f"splice, seam of {trial.repair_tokens}",
        f"{one.cosine_mean:.5f}",
        f"{one.kl_mean:.5f}",
        "–" if (times := one.over(noise)) is None else f"{times:.1f}",
        f"{one.top1_agreement:.3f}",
        _decided(one, noise),
        said,
    ]


def result_entry(name: str, result: GateResult) -> dict[str, object]:
    noise, best = result.noise.fidelity, result.best
    return {
        "skill": name,
        "n_tokens": sum(skill.n_tokens for skill in result.skills),
        **_numbers(best),
        "noise_kl_mean": round(noise.kl_mean, 6),
        "kl_over_noise": best.fidelity.over(noise),
        "noise_top1_agreement": round(noise.top1_agreement, 4),
        "noise_source": result.noise.source,
        "repair_tokens": best.repair_tokens,
        "n_leads": result.n_leads,
        "verdict": "passed" if result.passed else "failed",
        "failures": best.failures,
        "tried": [{"repair_tokens": trial.repair_tokens, **_numbers(trial)} for trial in result.trials],
    }


def _numbers(trial: Trial) -> dict[str, object]:
    one = trial.fidelity
    return {
        "cosine_mean": round(one.cosine_mean, 6),
        "kl_mean": round(one.kl_mean, 6),
        "top1_agreement": round(one.top1_agreement, 4),
        "n_positions": one.n_positions,
        "decisions": len(one.decisions),
        "decisions_same": sum(decision.same for decision in one.decisions),
    }
