"""What screens show of chats, skills and models: immutable pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvnotes_local.notebook.segment import Segment
from kvnotes_local.notebook.store.params import ChatParams

if TYPE_CHECKING:
    from kvnotes_local.skills.verdicts import Verdict


@dataclass(frozen=True)
class ChatView:
    """A chat at one moment. ``is_stored``: a new chat is in the store from its first change on."""

    id: str
    title: str
    segments: tuple[Segment, ...]
    fields: dict[str, str]
    params: ChatParams
    is_stored: bool = True

    @property
    def n_tokens(self) -> int:
        return sum(segment.n_tokens for segment in self.segments)

    @property
    def skills(self) -> tuple[str, ...]:
        return tuple(segment.name for segment in self.segments if segment.kind == "skill")


@dataclass(frozen=True)
class CompiledFor:
    """An artifact of a skill, and for which model it is. ``is_current``: of the skill, and of the llama.cpp, as they are now;
    ``is_waiting``: imported, and checked at the first use. ``values``: of fields, where they are not the defaults. ``verdict``:
    what was measured about splicing it in the loaded model's cache, None where nothing was."""

    model_fingerprint: str
    model_name: str
    n_tokens: int
    n_bytes: int
    is_current: bool
    is_waiting: bool = False
    values: tuple[tuple[str, str], ...] = ()
    verdict: Verdict | None = None

    @property
    def may_splice(self) -> bool:
        return self.verdict is None or self.verdict.outcome == "passed"


@dataclass(frozen=True)
class SkillRow:
    """A skill as a listing shows it. ``problem``: why it cannot be used."""

    name: str
    description: str
    folder: Path
    text: str
    fields: tuple[tuple[str, str], ...] = ()
    findings: tuple[str, ...] = ()
    compiled: tuple[CompiledFor, ...] = ()
    problem: str = ""

    def status(self, model_fingerprint: str | None) -> str:
        """In words, for one model."""
        if self.problem:
            return "broken"
        mine = [one for one in self.compiled if one.model_fingerprint == model_fingerprint]
        current = next((one for one in mine if one.is_current), None)
        if current is not None:
            return "compiled" if current.verdict is None else f"verified: {'splice' if current.may_splice else 'read'}"
        if any(one.is_waiting for one in mine):
            return "imported"
        return "out of date" if mine else "not compiled"


@dataclass(frozen=True)
class ModelRow:
    """A model file as a listing shows it. ``problem``: why it cannot be used."""

    path: Path
    name: str
    source: str
    n_bytes: int
    arch: str
    quantization: str
    n_ctx_train: int
    problem: str = ""
