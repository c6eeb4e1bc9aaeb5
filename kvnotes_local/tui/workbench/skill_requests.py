"""Compiling skills for the loaded model."""

from __future__ import annotations

from dataclasses import dataclass

from kvnotes_local.session.quantities import human_bytes
from kvnotes_local.tui.news import Notice, SkillCompiled
from kvnotes_local.tui.workbench.desk import EngineDesk, EngineRequest


@dataclass(frozen=True)
class CompileSkill(EngineRequest):
    """Make the artifact of a skill if it is missing; ``force``: also if it is there."""

    name: str
    force: bool = False

    @property
    def what(self) -> str:
        return f"Compiling {self.name}"

    def run(self, desk: EngineDesk) -> None:
        model = desk.model
        model.library.refresh()
        skill = model.library.get(self.name)
        compiled = model.compiler.compile(skill, force=self.force, progress=desk.progress)
        if compiled.prefill_tokens_per_second:
            model.speed.add(compiled.n_tokens, compiled.n_tokens / compiled.prefill_tokens_per_second)
        took = f" in {compiled.seconds:.1f} s" if compiled.seconds else ", it was up to date"
        desk.tell(Notice(f"{self.name}: {compiled.n_tokens:,} tokens, {human_bytes(compiled.n_bytes)}{took}."))
        desk.tell(SkillCompiled(self.name, compiled.n_tokens, compiled.n_bytes, compiled.seconds))
