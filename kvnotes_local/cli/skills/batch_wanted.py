"""Which skills a batch is about, as they are at this moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from kvnotes_local.errors import KvnotesError
from kvnotes_local.skills.library import Problem, SkillLibrary
from kvnotes_local.skills.skill import Skill
from kvnotes_local.skills.skill_file import find_skill_file
from kvnotes_local.spelling import composed, spelled_as_there


@dataclass
class Found:
    """What was looked for. ``broken``: names that cannot be compiled, with the reason. ``skipped``: what lies in the folders of
    skills and is none."""

    skills: list[Skill] = field(default_factory=list)
    broken: list[tuple[str, str]] = field(default_factory=list)
    skipped: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """Which skills. ``references``: files of theirs that are compiled as parts of their own, where a skill has them."""

    names: tuple[str, ...]
    everything: bool
    references: tuple[str, ...]
    skills_dirs: tuple[Path, ...]

    def library(self) -> SkillLibrary:
        return SkillLibrary.default(self.skills_dirs)

    def find(self) -> Found:
        """Read the skills. One that cannot be read does not keep the others from being compiled.

        Raises SkillError where nothing that was named can be read.
        """
        library = self.library()
        found = Found(skipped=library.problems if self.everything else ())
        errors: list[KvnotesError] = []
        known: set[str] = set()
        with_reference: set[str] = set()
        for name in self._names(library, with_reference):
            if name in known:
                continue
            known.add(name)
            try:
                found.skills.append(library.get(name))
            except KvnotesError as error:
                errors.append(error)
                found.broken.append((name, str(error)))
        if errors and not found.skills and not self.everything:
            raise errors[0]
        for reference in self.references:
            if self.everything and reference not in with_reference:
                found.broken.append((reference, "no skill has a file of that name; give it as references/x.md"))
        return found

    def _names(self, library: SkillLibrary, with_reference: set[str]) -> Iterator[str]:
        for name in [skill.name for skill in library.skills] if self.everything else self.names:
            yield name
            if not self.everything and "/" in name:
                continue  # is a part already
            for reference in self.references:
                if not self.everything or self._has(library, name, reference):
                    with_reference.add(reference)
                    yield f"{name}/{reference}"

    def _has(self, library: SkillLibrary, name: str, reference: str) -> bool:
        return any(
            spelled_as_there(skill.folder, PurePosixPath(reference).parts).is_file()
            for skill in library.skills
            if skill.name == name
        )

    def files(self) -> Iterator[Path]:
        """The files that the skills come from, also those that are broken at the moment."""
        library = self.library()
        parts = [name.partition("/") for name in self.names]
        owners = {owner for owner, _, _ in parts}
        for skill in library.skills:
            if self.everything or skill.name in owners:
                file = find_skill_file(skill.folder)
                if file is not None:
                    yield file
                for reference in self.references:
                    yield spelled_as_there(skill.folder, PurePosixPath(reference).parts)
                for owner, _, part in parts:
                    if part and owner == skill.name:
                        yield spelled_as_there(skill.folder, PurePosixPath(part).parts)
        for problem in library.problems:
            if self.everything or composed(problem.path.parent.name) in owners:
                yield problem.path
