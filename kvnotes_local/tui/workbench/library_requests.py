"""What can be done with skills and with what was compiled of them, without a model."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from kvnotes_local.errors import ArtifactError
from kvnotes_local.session.quantities import human_bytes
from kvnotes_local.session.short_path import short_path
from kvnotes_local.tui.news import Notice, SkillsChanged
from kvnotes_local.tui.workbench.desk import FileDesk, FileRequest
from kvnotes_local.wording import counted


def _home_of_skills(desk: FileDesk, base: Path) -> Path:
    """Where skills of one's own go: below ``base``, unless only the given places are looked at."""
    from kvnotes_local.skills.library import PLACES

    return desk.places.skills_dirs[0] if desk.places.only_given else base / PLACES[0]


@dataclass(frozen=True)
class NewSkill(FileRequest):
    """Write a SKILL.md to be filled in. ``like``: name of a skill to copy."""

    name: str
    like: str | None = None

    @property
    def what(self) -> str:
        return f"Beginning the skill {self.name}"

    def run(self, desk: FileDesk) -> None:
        from kvnotes_local.skills.library import project_root
        from kvnotes_local.skills.scaffold import write_new_skill

        source = None if self.like is None else desk.places.library().get(self.like)
        folder = _home_of_skills(desk, project_root(Path.cwd(), Path.home()))
        path = write_new_skill(self.name, folder, source)
        desk.tell(SkillsChanged())
        desk.tell(Notice(f"{short_path(path)} is written: fill it in with your editor, then compile it."))


@dataclass(frozen=True)
class RemoveCompiled(FileRequest):
    """Delete what was compiled of a skill; its SKILL.md stays. ``name``: None for all skills."""

    name: str | None

    @property
    def what(self) -> str:
        return "Removing what was compiled"

    def run(self, desk: FileDesk) -> None:
        from kvnotes_local.skills.housekeeping import remove_artifacts_of

        removed = remove_artifacts_of(desk.places.artifact_store(), None if self.name is None else [self.name])
        total = sum(one.stored.n_bytes for one in removed)
        desk.tell(SkillsChanged())
        desk.tell(
            Notice(f"Deleted {counted(len(removed), 'artifact')}, {human_bytes(total)}. The texts of skills stay.")
        )


@dataclass(frozen=True)
class MakeRoom(FileRequest):
    """Delete artifacts that nobody needs, and with a limit also those that were not used for long."""

    max_bytes: int | None = None
    older_than: timedelta | None = None

    @property
    def what(self) -> str:
        return "Making room"

    def run(self, desk: FileDesk) -> None:
        from kvnotes_local.skills.housekeeping import collect_garbage
        from kvnotes_local.skills.pins import PinMemory

        pins = PinMemory(desk.places.cache)
        garbage = collect_garbage(
            desk.places.artifact_store(),
            desk.places.library(),
            pins,
            max_bytes=self.max_bytes,
            older_than=self.older_than,
        )
        n_bytes = sum(one.n_bytes for one in garbage.files)
        desk.tell(SkillsChanged())
        desk.tell(
            Notice(
                f"Deleted {counted(len(garbage.files), 'file')}, {human_bytes(n_bytes)}; {human_bytes(garbage.bytes_left)} stay."
            )
        )


@dataclass(frozen=True)
class ExportSkill(FileRequest):
    """Write a skill and what is compiled of it for one model into a file. ``fingerprint``: of the loaded model, None where
    none is; then there may be one model only. ``to``: None for NAME.kvnotes.zip in the present folder."""

    name: str
    fingerprint: str | None
    to: Path | None = None

    @property
    def what(self) -> str:
        return f"Exporting {self.name}"

    def run(self, desk: FileDesk) -> None:
        from kvnotes_local.skills.status import exportable
        from kvnotes_local.skills.transfer import EXPORT_SUFFIX, export_skill

        library = desk.places.library()
        skill = library.get(self.name)
        found = exportable(library, desk.places.artifact_store(), skill)
        if not found:
            raise ArtifactError(f"{self.name} is not compiled as it is now. Compile it first (c on the Skills screen).")
        names = ", ".join(files[0].model_name for files in found.values())
        if self.fingerprint is None and len(found) > 1:
            raise ArtifactError(f"{self.name} is compiled for {names}. Load the one that is meant (F5).")
        fingerprint = self.fingerprint or next(iter(found))
        if fingerprint not in found:
            raise ArtifactError(f"{self.name} is compiled for {names}, not for the loaded model. Compile it first.")
        target = self.to or Path.cwd() / f"{skill.name}{EXPORT_SUFFIX}"
        if target.exists():
            raise ArtifactError(f"{target} exists already and was left as it is. Name another file.")
        n_bytes = export_skill(skill, found[fingerprint], target)
        model = found[fingerprint][0].model_name
        desk.tell(Notice(f"{short_path(target)} is written: {skill.name} for {model}, {human_bytes(n_bytes)}."))


@dataclass(frozen=True)
class ImportSkill(FileRequest):
    """Take in a file that an export wrote; what is in it is checked against the model when it is first used."""

    path: Path

    @property
    def what(self) -> str:
        return "Importing a skill"

    def run(self, desk: FileDesk) -> None:
        from kvnotes_local.skills.imports import ImportShelf
        from kvnotes_local.skills.transfer import import_skill

        imported = import_skill(
            self.path, ImportShelf(desk.places.artifact_store()), _home_of_skills(desk, Path.home())
        )
        desk.tell(SkillsChanged())
        desk.tell(
            Notice(
                f"{imported.skill.name} is in {short_path(imported.skill.folder)}. What was compiled for {imported.model_name} "
                "is checked when it is first spliced."
            )
        )
