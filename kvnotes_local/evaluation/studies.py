"""What moves the fidelity of a splice: leads, seam, rotation, number of skills. Each way is led through the same answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kvnotes_local.engine.artifact import open_artifact
from kvnotes_local.engine.artifact_meta import text_sha256
from kvnotes_local.engine.artifact_writer import write_artifact
from kvnotes_local.engine.compile_job import ArtifactLabels, CompileJob
from kvnotes_local.engine.plan import Part, Splice
from kvnotes_local.engine.protocol import Engine
from kvnotes_local.engine.turns import TurnTokenizer
from kvnotes_local.evaluation.fidelity import (
    Fidelity,
    OtherEngine,
    Recompute,
    Step,
    contexts_read,
    measure_noise,
    measure_plan,
    measure_splice,
    recompute,
)
from kvnotes_local.evaluation.questions import Context, Question
from kvnotes_local.evaluation.statistics import Estimate, estimate
from kvnotes_local.skills.compiler import CompiledSkill
from kvnotes_local.skills.leads import LEADS, Lead, header_tokens, lead_tokens


@dataclass(frozen=True)
class WayRow:
    """One way against recompute. ``versus``: mean KL minus that of the way it is compared with, position by position; None
    for that way itself."""

    way: str
    cosine: float
    kl: Estimate
    top1: Estimate
    decisions: int
    same: int
    versus: Estimate | None = None


@dataclass(frozen=True)
class Study:
    """Ways of taking one skill (or several) into a chat. ``noise``: row of the floor, with its ``source``."""

    skill: str
    n_tokens: int
    source: str
    noise: WayRow
    rows: tuple[WayRow, ...]


ARTIFACT_WAY = "artifact, "
"""How the names of ways with the artifact as it is begin."""

Way = Callable[[Context], Sequence[Part]]
Ways = dict[str, Way]


def lead_ways(engine: Engine, skill: CompiledSkill, folder: Path) -> Ways:
    """Artifacts of one skill behind other leads, and one whose keys are not turned, each spliced without a seam."""
    turns = TurnTokenizer(engine.info.chat_format, engine.tokenize)
    singles = {f"lead: {lead.name}": (lead_tokens(turns, lead),) for lead in LEADS}
    all_leads = tuple(leads[0] for leads in singles.values())
    variants = {
        "bare": (turns.begin(),),
        "lead: header": (header_tokens(turns),),
        **singles,
        **{name: (lead,) for name, lead in _role_leads(turns).items()},
        f"mean of {len(all_leads)}": all_leads,
    }
    ways: Ways = {}
    for number, (name, leads) in enumerate(variants.items()):
        path = _compile(engine, skill, leads, folder / f"{number}.safetensors")
        ways[name] = _splicing(path, skill.n_tokens)
    ways["lead: all of them in a row"], ways["lead: as long as the chat"] = _long_leads(engine, skill, turns, folder)
    ways["keys not turned"] = _unturned(skill, folder)
    ways["without the skill"] = lambda context: ()
    return ways


def study_skill(
    engine: Engine,
    skill: CompiledSkill,
    contexts: Sequence[Context],
    questions: Sequence[Question],
    *,
    ways: Ways,
    seams: Sequence[int],
    other: OtherEngine | None = None,
    n_positions: int = 32,
    step: Step = lambda what: None,
) -> Study:
    """Every seam of the skill's own artifact and every other way, compared with the artifact without a seam."""
    reference = recompute(engine, [skill], contexts, questions, n_positions=n_positions, step=step)
    noise = measure_noise(engine, reference, other, step=step)
    with contexts_read(engine, contexts) as bases:
        plain = measure_splice(engine, reference, 0, bases=bases, step=step)
        rows = [_row(f"{ARTIFACT_WAY}seam of 0", plain, None)]
        for seam in seams:
            if 0 < seam < skill.n_tokens:
                measured = measure_splice(engine, reference, seam, bases=bases, step=step)
                rows.append(_row(f"{ARTIFACT_WAY}seam of {seam}", measured, plain))
        for name, way in ways.items():
            rows.append(_row(name, measure_plan(engine, reference, way, bases=bases, step=step), plain))
    return Study(
        skill.skill.name, skill.n_tokens, noise.source.value, _row("noise floor", noise.fidelity, None), tuple(rows)
    )


def study_together(
    engine: Engine,
    skills: Sequence[CompiledSkill],
    contexts: Sequence[Context],
    questions: Sequence[Question],
    *,
    seams: Sequence[int] = (0,),
    other: OtherEngine | None = None,
    n_positions: int = 32,
    step: Step = lambda what: None,
) -> Study:
    """Several skills spliced one behind the other."""
    reference: Recompute = recompute(engine, skills, contexts, questions, n_positions=n_positions, step=step)
    noise = measure_noise(engine, reference, other, step=step)
    rows = [
        _row(f"{len(skills)} skills, seam of {seam}", measure_splice(engine, reference, seam, step=step), None)
        for seam in seams
    ]
    names = ", ".join(skill.skill.name for skill in skills)
    n_tokens = sum(skill.n_tokens for skill in skills)
    return Study(names, n_tokens, noise.source.value, _row("noise floor", noise.fidelity, None), tuple(rows))


def _row(way: str, fidelity: Fidelity, base: Fidelity | None) -> WayRow:
    groups = np.repeat(np.arange(len(fidelity.answers)), [len(one.kl) for one in fidelity.answers])
    top1 = np.concatenate([one.top1 for one in fidelity.answers])
    return WayRow(
        way=way,
        cosine=fidelity.cosine_mean,
        kl=estimate(fidelity.kl, groups),
        top1=estimate(top1, groups),
        decisions=len(fidelity.decisions),
        same=sum(one.same for one in fidelity.decisions),
        versus=None if base is None else estimate(fidelity.kl - base.kl, groups),
    )


def _splicing(path: Path, n_tokens: int) -> Way:
    return lambda context: [Splice(path, 0, n_tokens)]


def _compile(engine: Engine, skill: CompiledSkill, leads: tuple[tuple[int, ...], ...], path: Path) -> Path:
    labels = ArtifactLabels(skill.skill.name, text_sha256(skill.text), repr(leads)[:32], "")
    engine.compile(CompileJob(skill.turn.tokens, leads, path, labels))
    return path


def _role_leads(turns: TurnTokenizer) -> dict[str, tuple[int, ...]]:
    """The words of the first lead, all of them in one turn: the system's, the user's, the assistant's."""
    chat_format = turns.format
    words = " ".join(said for exchange in LEADS[0].exchanges for said in exchange)
    leads = {
        "lead: one turn of the user": header_tokens(turns) + turns.wrap(chat_format.user, words).tokens,
        "lead: one turn of the assistant": header_tokens(turns) + turns.wrap(chat_format.assistant, words).tokens,
    }
    if chat_format.system is not None:
        leads["lead: the system turn"] = turns.begin() + turns.wrap(chat_format.system, words).tokens
    return leads


def _long_leads(engine: Engine, skill: CompiledSkill, turns: TurnTokenizer, folder: Path) -> tuple[Way, Way]:
    """One lead that is all exchanges of all leads, and one of as many of them as come nearest to the length of each chat."""
    exchanges = [exchange for lead in LEADS for exchange in lead.exchanges]
    leads = [lead_tokens(turns, Lead("", tuple(exchanges[:n]))) for n in range(len(exchanges) + 1)]

    def of(n: int) -> Sequence[Part]:
        path = folder / f"exchanges-{n}.safetensors"
        if not path.exists():
            _compile(engine, skill, (leads[n],), path)
        return [Splice(path, 0, skill.n_tokens)]

    def matched(context: Context) -> Sequence[Part]:
        return of(min(range(len(leads)), key=lambda n: abs(len(leads[n]) - len(context.tokens))))

    return lambda context: of(len(exchanges)), matched


def _unturned(skill: CompiledSkill, folder: Path) -> Way:
    """Positions of the artifact are relabelled as those where the rows will stand, so that nothing turns them."""

    def parts(context: Context) -> Sequence[Part]:
        start = len(context.tokens)
        path = folder / f"unturned-{start}.safetensors"
        if not path.exists():
            with open_artifact(skill.path) as artifact:
                rows = artifact.rows()
                caches = tuple(
                    replace(cache, pos=(cache.pos - artifact.meta.position_start + start).astype(np.int32))
                    for cache in rows.caches
                )
                write_artifact(path, replace(artifact.meta, position_start=start), replace(rows, caches=caches))
        return [Splice(path, 0, skill.n_tokens)]

    return parts
