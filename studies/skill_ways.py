"""Ways of taking one skill into a chat, to be compared: behind other leads, with the seam elsewhere, wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvnotes_local.artifacts.artifact import open_artifact
from kvnotes_local.artifacts.meta import text_sha256
from kvnotes_local.artifacts.writer import write_artifact
from kvnotes_local.chat_format.turns import TurnTokenizer
from kvnotes_local.contract.compile_job import ArtifactLabels, CompileJob
from kvnotes_local.contract.plan import Decode, Part, Splice
from kvnotes_local.contract.protocol import Engine
from kvnotes_local.evaluation.questions import Context
from kvnotes_local.kv.layout import StateRows
from kvnotes_local.skills.compiler import CompiledSkill
from kvnotes_local.skills.leads import LEADS, Lead, header_tokens, lead_tokens
from studies.value_distances import value_distances

Way = Callable[[Context], Sequence[Part]]
Ways = dict[str, Way]


def lead_ways(engine: Engine, skill: CompiledSkill, folder: Path) -> Ways:
    """Artifacts of one skill behind other leads, and one whose keys are not turned, each spliced without a seam."""
    turns = TurnTokenizer(engine.info.chat_format, engine.tokenize)
    singles = {f"lead: {lead.name}": (lead_tokens(turns, lead),) for lead in LEADS}
    all_leads = tuple(leads[0] for leads in singles.values())
    variants = {
        "bare": (() if turns.format.default_system is not None else header_tokens(turns),),
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


def seam_ways(engine: Engine, skill: CompiledSkill, folder: Path, n_seam: int = 32) -> Ways:
    """As many tokens as a seam of ``n_seam`` computes on the real chat, but elsewhere in the skill."""
    n, half = skill.n_tokens, n_seam // 2
    if n <= 2 * n_seam:
        return {}
    middle = (n - n_seam) // 2
    chosen = {
        f"{n_seam} at the end": range(n - n_seam, n),
        f"{n_seam} in the middle": range(middle, middle + n_seam),
        f"{half} at the start, {half} at the end": [*range(half), *range(n - half, n)],
        f"the {n_seam} that depend most on the lead": np.argsort(-_lead_dependence(engine, skill, folder))[
            :n_seam
        ].tolist(),
        f"{n_seam} at random": np.random.default_rng(0).choice(n, n_seam, replace=False).tolist(),
    }
    return {f"seam: {name}": _computing(skill, which) for name, which in chosen.items()}


def _lead_dependence(engine: Engine, skill: CompiledSkill, folder: Path) -> NDArray[np.float64]:
    """How far the values of each of the skill's tokens are apart behind the first two leads: float64 (n,)."""
    turns = TurnTokenizer(engine.info.chat_format, engine.tokenize)
    with ExitStack() as stack:
        readings = []
        for number, lead in enumerate(LEADS[:2]):
            path = _compile(engine, skill, (lead_tokens(turns, lead),), folder / f"single-{number}.safetensors")
            artifact = stack.enter_context(open_artifact(path))
            readings.append(
                _relabelled(artifact.rows(), -artifact.meta.position_start)
            )  # values have no positions in them
        first, second = readings
        return value_distances(first, second)[1]


def _computing(skill: CompiledSkill, which: Iterable[int]) -> Way:
    """The skill spliced, but for these tokens, which are computed in their places."""
    parts: list[Part] = []
    chosen = set(which)
    at = 0
    while at < skill.n_tokens:
        stop, inside = at + 1, at in chosen
        while stop < skill.n_tokens and (stop in chosen) == inside:
            stop += 1
        parts.append(Decode(skill.turn.tokens[at:stop]) if inside else Splice(skill.path, at, stop))
        at = stop
    return lambda context: parts


def _splicing(path: Path, n_tokens: int) -> Way:
    return lambda context: [Splice(path, 0, n_tokens)]


def _compile(engine: Engine, skill: CompiledSkill, leads: tuple[tuple[int, ...], ...], path: Path) -> Path:
    labels = ArtifactLabels(skill.skill.name, text_sha256(skill.text), repr(leads)[:32], "")
    engine.compile(CompileJob(skill.turn.tokens, leads, path, labels))
    return path


def _role_leads(turns: TurnTokenizer) -> dict[str, tuple[int, ...]]:
    """The words of the first lead, all of them in one turn: the system's, the user's, the assistant's."""
    words = " ".join(said for exchange in LEADS[0].exchanges for said in exchange)
    leads = {
        "lead: one turn of the user": header_tokens(turns) + turns.user(words).tokens,
        "lead: one turn of the assistant": header_tokens(turns) + turns.assistant(words).tokens,
    }
    if not turns.format.system_is_placed:
        leads["lead: the system turn"] = turns.beginning(words, closed=True).tokens
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
                rows = _relabelled(artifact.rows(), start - artifact.meta.position_start)
                write_artifact(path, replace(artifact.meta, position_start=start), rows)
        return [Splice(path, 0, skill.n_tokens)]

    return parts


def _relabelled(rows: StateRows, by: int) -> StateRows:
    """With other positions written on them; the keys are not turned."""
    return replace(rows, caches=tuple(replace(one, pos=(one.pos + by).astype(np.int32)) for one in rows.caches))
