"""From a skill to its artifact for one model: tokens in the model's format, leads, key, and compiling what is missing."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from kvnotes_local.artifacts.artifact import artifact_key, open_artifact
from kvnotes_local.artifacts.meta import ArtifactKind, text_sha256
from kvnotes_local.chat_format.turns import TurnPiece, TurnTokenizer, TurnTokens
from kvnotes_local.contract.compile_job import ArtifactLabels, Compiled
from kvnotes_local.contract.model_info import ModelClass, ModelInfo
from kvnotes_local.contract.protocol import Engine, Progress
from kvnotes_local.contract.store_type import StoreType
from kvnotes_local.errors import ArtifactError, SkillError
from kvnotes_local.skills.artifact_limit import ArtifactLimit
from kvnotes_local.skills.artifact_store import ArtifactStore
from kvnotes_local.skills.imports import ImportShelf
from kvnotes_local.skills.leads import DEFAULT_N_LEADS, LEAD_NUMBERS, LEADS, header_tokens, lead_tokens
from kvnotes_local.skills.pins import PinMemory
from kvnotes_local.skills.skill import Skill
from kvnotes_local.skills.task import Task
from kvnotes_local.skills.template import FieldPiece, Piece, given_values
from kvnotes_local.skills.verdicts import Outcome, Verdict, VerdictStore, conditions_of

_MAX_TURNS = 64
"""Skills whose tokens are remembered: looking one up, reading its verdict and splicing it ask for them again and again."""

AVERAGE = "mean, sinks from the first"
"""How the rows of several leads become one; part of an artifact's key, so that a change of method makes new ones."""


class CompileStatus(StrEnum):
    """COMPILED: made now. UP_TO_DATE: was there already."""

    COMPILED = "compiled"
    UP_TO_DATE = "up to date"


@dataclass(frozen=True)
class CompiledSkill:
    """A skill with its artifact. ``turn``: its tokens, which are those of the artifact's rows. ``repair_tokens``: seam to
    decode, as the skill asks, else as the gate found (``verdict``), else the default."""

    skill: Skill
    text: str
    turn: TurnTokens
    key: str
    path: Path
    n_bytes: int
    status: CompileStatus
    repair_tokens: int
    verdict: Verdict | None = None
    n_leads: int = 1
    seconds: float = 0.0
    prefill_tokens_per_second: float | None = None

    @property
    def n_tokens(self) -> int:
        return len(self.turn.tokens)


class SkillCompiler:
    """Finds and makes artifacts for one engine in one store.

    ``n_leads``: how many leads the rows are averaged over, unless the gate found (``verdicts``) that this fails and another
    number passes. ``store_type``: unless the skill asks for another. ``limit``: heeded after each artifact that was made; None
    for no limit.
    """

    def __init__(
        self,
        engine: Engine,
        store: ArtifactStore,
        *,
        n_leads: int = DEFAULT_N_LEADS,
        store_type: StoreType = StoreType.F16,
        verdicts: VerdictStore | None = None,
        limit: ArtifactLimit | None = None,
    ) -> None:
        self._engine = engine
        self._store = store
        self._verdicts = verdicts
        self._n_leads = n_leads
        self._store_type = store_type
        self._limit = limit
        self._imports = ImportShelf(store)
        self._pins = PinMemory(store.directory.parent)
        self._turns = TurnTokenizer(engine.info.chat_format, engine.tokenize)
        self._turn = lru_cache(_MAX_TURNS)(self._turns.skill)
        self._leads = lru_cache(self._leads_of)

    def turn(self, skill: Skill, *, values: Mapping[str, str] | None = None) -> TurnTokens:
        """The skill as a turn of this model. Raises SkillError when it is empty."""
        turn = self._turn(tuple(template_pieces(skill.pieces, values)))
        if turn.content_start == turn.content_stop:
            raise SkillError(
                f"The skill {skill.name} has no text after its frontmatter; write what the model shall know."
            )
        return turn

    def verdict(self, skill: Skill, *, values: Mapping[str, str] | None = None) -> Verdict | None:
        """What the gate found for the skill as it is now, in this engine; None where nothing was measured."""
        return self._verdict(self.task(skill, values).key)

    def find(self, skill: Skill, *, values: Mapping[str, str] | None = None) -> CompiledSkill | None:
        """The artifact of the skill as it is now, verified; None where there is none or it is damaged."""
        return self.existing(skill, self.task(skill, values))

    def compile(
        self,
        skill: Skill,
        *,
        values: Mapping[str, str] | None = None,
        behind: tuple[int, ...] | None = None,
        n_leads: int | None = None,
        force: bool = False,
        progress: Progress | None = None,
    ) -> CompiledSkill:
        """The artifact of a skill, made now if it is missing. ``values``: of its fields, else the defaults.

        ``behind``: the beginning of the chat that a whole state (prefix-only models) includes, else the usual one.
        ``n_leads``: this many leads, whatever the gate found.

        Raises SkillError, ArtifactError (also for a model that cannot use artifacts), Cancelled.
        """
        task = self.task(skill, values, behind, n_leads)
        if not force and (existing := self.existing(skill, task)) is not None:
            return existing
        made = self._engine.compile(task.job(), progress=progress)
        return self.compiled(skill, task, made)

    def existing(self, skill: Skill, task: Task, *, verify: bool = True) -> CompiledSkill | None:
        """The artifact of a task, None where there is none or it is damaged. ``verify``: compare checksums, too.

        One that was imported and not checked yet is compared with what the model computes, now; ArtifactError where it
        differs.
        """
        if not task.path.exists() and not self._imports.adopt(self._engine, task):
            return None
        info = self._engine.info
        self._store.touch_used(task.path)
        try:
            with open_artifact(
                task.path,
                model_fingerprint=info.fingerprint,
                rotation=info.rotation_fingerprint or None,
                verify=verify,
            ) as artifact:
                if artifact.meta.tokens[-len(task.turn.tokens) :] != task.turn.tokens:
                    return None
                n_bytes = task.path.stat().st_size
        except (ArtifactError, OSError):
            return None  # damaged or vanished: it is made anew
        self._imports.discard(info, task)
        return self._compiled(skill, task, n_bytes)

    def compiled(self, skill: Skill, task: Task, made: Compiled) -> CompiledSkill:
        """What the engine made, with its skill."""
        compiled = self._compiled(skill, task, made.n_bytes, made)
        if self._limit is not None:
            self._limit.keep_within(self._store, {skill.name.partition("/")[0], *self._pins.names()})
        return compiled

    def drop_unused(self, skill: Skill, made: Sequence[CompiledSkill]) -> None:
        """Delete those artifacts of a skill that the verdicts leave without a use: the same text behind other leads."""
        used = self.task(skill).path
        for one in made:
            if one.path != used:
                with contextlib.suppress(ArtifactError):  # they cost room only
                    self._store.remove_path(one.path)

    def _compiled(self, skill: Skill, task: Task, n_bytes: int, made: Compiled | None = None) -> CompiledSkill:
        self._pins.note(skill)
        verdict = self._verdict(task.key)
        measured = default_repair(self._engine.info) if verdict is None else verdict.repair_tokens
        return CompiledSkill(
            skill,
            task.text,
            task.turn,
            task.key,
            task.path,
            n_bytes,
            CompileStatus.UP_TO_DATE if made is None else CompileStatus.COMPILED,
            measured if skill.settings.repair is None else skill.settings.repair,
            verdict,
            len(task.leads),
            seconds=made.seconds if made else 0.0,
            prefill_tokens_per_second=made.decoded / made.decode_seconds if made and made.decode_seconds else None,
        )

    def task(
        self,
        skill: Skill,
        values: Mapping[str, str] | None = None,
        behind: tuple[int, ...] | None = None,
        n_leads: int | None = None,
    ) -> Task:
        """What the skill's artifact will be made from. Raises SkillError, ArtifactError."""
        usual = self._task(skill, values, behind, n_leads or self._n_leads)
        if n_leads is not None or behind is not None or self._outcome(usual.key) is not Outcome.FAILED:
            return usual
        others = (self._task(skill, values, None, n) for n in LEAD_NUMBERS if n != self._n_leads)
        return next((one for one in others if self._outcome(one.key) is Outcome.PASSED), usual)

    def _task(
        self,
        skill: Skill,
        values: Mapping[str, str] | None,
        behind: tuple[int, ...] | None,
        n_leads: int,
    ) -> Task:
        info = self._engine.info
        if info.model_class is ModelClass.PREFILL:
            raise ArtifactError(
                f"{info.name} cannot use artifacts: {info.class_reason} Use ask --read-skills to let the model read the skill."
            )
        wrapper = self._turns.format.skill
        text = skill.text(values)
        turn = self.turn(skill, values=values)
        leads = self._leads(n_leads) if behind is None else (behind,)
        store = skill.settings.store or self._store_type
        whole = info.model_class is ModelClass.PREFIX_ONLY
        labels = ArtifactLabels(
            skill=skill.name,
            skill_sha256=text_sha256(text),
            lead=_digest([AVERAGE, *(list(lead) for lead in leads)]),
            wrapper=json.dumps([wrapper.open, wrapper.close]),
            fields=turn.fields,
        )
        key = artifact_key(
            skill_sha256=labels.skill_sha256,
            model_fingerprint=info.fingerprint,
            wrapper=labels.wrapper,
            lead=labels.lead,
            rotation_fingerprint=info.rotation_fingerprint,
            store=store,
            llama_cpp_version=info.llama_cpp_version,
            kind=ArtifactKind.STATE if whole else ArtifactKind.ROWS,
        )
        return Task(text, turn, leads, labels, store, key, self._store.path(key, skill.name, info.fingerprint))

    def _leads_of(self, n_leads: int) -> tuple[tuple[int, ...], ...]:
        if self._engine.info.model_class is ModelClass.PREFIX_ONLY:
            return (header_tokens(self._turns),)
        return tuple(lead_tokens(self._turns, lead) for lead in LEADS[:n_leads]) or (header_tokens(self._turns),)

    def _outcome(self, key: str) -> Outcome | None:
        verdict = self._verdict(key)
        return None if verdict is None else verdict.outcome

    def _verdict(self, key: str) -> Verdict | None:
        return None if self._verdicts is None else self._verdicts.find(conditions_of(self._engine.info, key))


def default_repair(info: ModelInfo) -> int:
    """Seam tokens when nothing was measured for this model and skill.

    Behind averaged leads a short seam changes nothing that could be told from noise on models with full attention, and costs
    a batch of its own before the question; with a sliding window a skill passes the gate with 8 that fails without
    (docs/fidelity.md).
    """
    return 8 if info.n_swa else 0


def template_pieces(pieces: Sequence[Piece], values: Mapping[str, str] | None = None) -> list[TurnPiece]:
    """A text with fields as pieces of a turn, so that the tokens of each field's value are known."""
    given = given_values(values)
    return [
        TurnPiece(piece.value(given), piece.name) if isinstance(piece, FieldPiece) else TurnPiece(piece.text)
        for piece in pieces
    ]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]
