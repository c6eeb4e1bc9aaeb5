"""What the library holds in compiled form, skill by skill, told without a model: from artifacts' headers and skills' texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version

from kvnotes_local.artifacts.meta import ArtifactKind, ArtifactMeta, rows_version, text_sha256
from kvnotes_local.contract.model_info import release
from kvnotes_local.errors import SkillError
from kvnotes_local.skills.artifact_store import ArtifactStore, StoredArtifact
from kvnotes_local.skills.library import SkillLibrary
from kvnotes_local.skills.skill import Skill
from kvnotes_local.skills.verdicts import Outcome, Verdict


class ArtifactState(StrEnum):
    """COMPILED: as the skill is now. GATE_FAILED: so, too, but splicing it was measured to be worse than reading, with
    one KV type at least. STALE: made from something else, see the reason. UNCHECKED: imported, waits for its model.
    OTHER_VERSION: sound, but of another version of kvnotes-local. DAMAGED: cannot be read."""

    COMPILED = "compiled"
    GATE_FAILED = "gate failed"
    STALE = "stale"
    UNCHECKED = "imported, not checked yet"
    OTHER_VERSION = "made by another version of kvnotes"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class ArtifactStatus:
    """One artifact of a skill. ``reason``: why it is stale or damaged. ``values``: of the fields it was made with, where they
    differ from the defaults. ``verdicts``: what was measured with the installed llama.cpp, a verdict a KV type."""

    stored: StoredArtifact
    state: ArtifactState
    reason: str = ""
    values: tuple[tuple[str, str], ...] = ()
    verdicts: tuple[Verdict, ...] = ()

    @property
    def is_current(self) -> bool:
        """Is it of the skill, and of the llama.cpp, as they are now?"""
        return self.state in (ArtifactState.COMPILED, ArtifactState.GATE_FAILED)


def artifact_states(
    library: SkillLibrary,
    stored: Iterable[StoredArtifact],
    waiting: Iterable[StoredArtifact] = (),
    verdicts: Iterable[Verdict] = (),
) -> dict[str, tuple[ArtifactStatus, ...]]:
    """States of all artifacts by skill (references go with theirs), the current ones first, of these the ones with the fields'
    defaults. Skills without any are left out;
    artifacts of skills that are gone are under their old names."""
    installed = version("llama-cpp-python")
    texts = _Texts(library)
    known: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in sorted(verdicts, key=lambda one: (one.conditions.kv_type, one.created)):
        if verdict.conditions.build.startswith(f"{release(installed)}, "):  # what another one passed says nothing
            known[verdict.conditions.artifact_key].append(verdict)
    found: dict[str, list[ArtifactStatus]] = defaultdict(list)
    for one in stored:
        if one.meta is None:
            if one.is_other_version:
                status = ArtifactStatus(one, ArtifactState.OTHER_VERSION, "compile it again")
            else:
                status = ArtifactStatus(one, ArtifactState.DAMAGED, one.problem)
            found[one.path.stem.rsplit("-", 1)[0]].append(status)
            continue
        reason, values = _staleness(one.meta, texts, installed)
        measured = tuple(known[one.meta.key])
        failed = any(verdict.outcome is Outcome.FAILED for verdict in measured)
        state = ArtifactState.STALE if reason else ArtifactState.GATE_FAILED if failed else ArtifactState.COMPILED
        found[one.meta.skill.partition("/")[0]].append(ArtifactStatus(one, state, reason, values, measured))
    for one in waiting:
        if one.meta is not None:
            name = one.meta.skill.partition("/")[0]
            found[name].append(ArtifactStatus(one, ArtifactState.UNCHECKED, one.meta.origin.removeprefix("imported ")))
    order = list(ArtifactState)
    return {
        name: tuple(sorted(all_, key=lambda one: (order.index(one.state), bool(one.values))))
        for name, all_ in found.items()
    }


class _Texts:
    """Skills by name, each read once; None for one that is gone or broken."""

    def __init__(self, library: SkillLibrary) -> None:
        self._library = library
        self._known: dict[str, Skill | None] = {}

    def get(self, name: str) -> Skill | None:
        if name not in self._known:
            try:
                self._known[name] = self._library.get(name)
            except SkillError:
                self._known[name] = None
        return self._known[name]


def _staleness(meta: ArtifactMeta, texts: _Texts, installed: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Why an artifact is not used any more ("" if it is), and its field values that are not the defaults."""
    skill = texts.get(meta.skill)
    if skill is None:
        return "the skill is gone", ()
    values = {one.name: one.value for one in meta.fields}
    changed = tuple((name, value) for name, value in values.items() if skill.fields.get(name) != value)
    if text_sha256(skill.text(values)) != meta.skill_sha256:
        return "the text has changed", ()
    if not _same_llama_cpp(meta, installed):
        return f"made by llama.cpp {meta.llama_cpp_version}, now {installed}", changed
    return "", changed


def _same_llama_cpp(meta: ArtifactMeta, installed: str) -> bool:
    if meta.kind is ArtifactKind.STATE:
        return meta.llama_cpp_version == installed
    return rows_version(meta.llama_cpp_version) == rows_version(installed)


def exportable(library: SkillLibrary, store: ArtifactStore, skill: Skill) -> dict[str, tuple[StoredArtifact, ...]]:
    """Artifacts of the skill as it is now, by the fingerprint of their model."""
    found: dict[str, tuple[StoredArtifact, ...]] = {}
    for one in artifact_states(library, store.list()).get(skill.name, ()):
        if one.is_current and one.stored.meta is not None:
            fingerprint = one.stored.meta.model_fingerprint
            found[fingerprint] = (*found.get(fingerprint, ()), one.stored)
    return found
