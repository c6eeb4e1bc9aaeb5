"""How a skill comes into a chat: spliced, restored with the whole beginning of the chat, or read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvnotes_local.contract.model_info import ModelClass
from kvnotes_local.contract.protocol import Engine, Progress
from kvnotes_local.notebook.changes import Change, Draft
from kvnotes_local.notebook.proof import PrefillSpeed
from kvnotes_local.notebook.segment import Freshness, Kind, Segment, all_tokens
from kvnotes_local.notebook.segment_factory import SegmentFactory
from kvnotes_local.skills.compiler import SkillCompiler
from kvnotes_local.skills.library import SkillLibrary
from kvnotes_local.skills.skill import Skill
from kvnotes_local.skills.verdicts import Outcome
from kvnotes_local.wording import counted


@dataclass(frozen=True)
class SkillSplicer:
    """Makes the change that puts a skill into a chat. ``notice`` is told where a skill is read although it was to be spliced, and
    where it is not the only one.
    ``speed`` learns from compiling how fast this engine reads."""

    engine: Engine
    library: SkillLibrary
    compiler: SkillCompiler
    factory: SegmentFactory
    notice: Callable[[str], None]
    speed: PrefillSpeed

    def change(
        self,
        segments: Sequence[Segment],
        n_cached: int,
        name: str,
        place: int,
        *,
        repair: int | None,
        values: Mapping[str, str] | None,
        read: bool,
        heed_verdict: bool,
        progress: Progress | None,
    ) -> Change:
        """The skill before segment ``place``; the rest as in ``Notebook.splice``. Compiles what is missing."""
        skill = self.library.get(name)
        whole = self.engine.info.model_class is ModelClass.PREFIX_ONLY
        joint = self.factory.joint
        draft = Draft(segments, n_cached, joint)
        if read or self._has_to_be_read(skill, segments, values, heed_verdict and repair is None):
            return draft.keep(0, place).read(self.factory.read_skill(self.compiler, skill, values)).keep(place).change()
        if whole and joint is not None and segments and joint.is_open(segments[-1]):
            segments = (*segments[:-1], joint.closed(segments[-1]))
            draft = Draft(segments, n_cached, joint)
        behind = tuple(all_tokens(segments)) if whole else None
        compiled = self.compiler.compile(skill, values=values, behind=behind, progress=progress)
        if compiled.prefill_tokens_per_second:
            self.speed.add(compiled.n_tokens, compiled.n_tokens / compiled.prefill_tokens_per_second)
        segment = self.factory.skill(compiled)
        if whole:
            return draft.restore(segment, compiled.path).change()
        k = min(compiled.repair_tokens if repair is None else repair, compiled.n_tokens)
        if heed_verdict:
            self._tell_of_company(name, segments)
        return draft.keep(0, place).splice(segment, compiled.path, k).keep(place).change()

    def _tell_of_company(self, name: str, segments: Sequence[Segment]) -> None:
        """Skills that pass alone need not pass together: neither has notes of the other."""
        spliced = [
            segment.name
            for segment in segments
            if segment.kind is Kind.SKILL and any(run.freshness is not Freshness.FRESH for run in segment.runs)
        ]
        if spliced:
            names = ",".join([*spliced, name])
            self.notice(
                f"{counted(len(spliced) + 1, 'skill')} are spliced into this chat now, and what was measured of each does not "
                f"add up: `kvnotes verify --together {names}` measures them together."
            )

    def _has_to_be_read(
        self, skill: Skill, segments: Sequence[Segment], values: Mapping[str, str] | None, heed_verdict: bool
    ) -> bool:
        info = self.engine.info
        if info.model_class is ModelClass.PREFIX_ONLY:
            if all(segment.kind is Kind.SYSTEM for segment in segments):
                return False
            self.notice(
                f"{info.name} can take in a compiled skill at the start of a chat only ({info.class_reason}); "
                f"{skill.name} is read now."
            )
            return True
        verdict = self.compiler.verdict(skill, values=values) if heed_verdict else None
        if verdict is None or verdict.outcome is Outcome.PASSED:
            return False
        self.notice(
            f"Splicing {skill.name} was measured to be worse than reading it with this model and {verdict.conditions.kv_name} "
            f"KV (mean KL {verdict.kl_mean:.4f} nats, noise {verdict.noise_kl_mean:.4f}), so it is read now."
        )
        return True
