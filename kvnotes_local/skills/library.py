"""Finding skills in folders. The first folder that has a name wins; nothing that was left out goes unmentioned."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kvnotes_local.errors import SkillError
from kvnotes_local.skills.skill import Skill, SkillSummary
from kvnotes_local.skills.skill_file import FILE_NAME, load_part, load_skill, load_summary
from kvnotes_local.spelling import composed

MAX_DEPTH = 4
MAX_FOLDERS = 20_000
PLACES = (Path(".agents", "skills"), Path(".claude", "skills"))
"""Where agents look for skills, below a project and below the home directory."""
_SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "node_modules", "__pycache__"})


@dataclass(frozen=True)
class Problem:
    """A skill or folder that could not be read, and why (what to do is part of the message)."""

    path: Path
    message: str


@dataclass(frozen=True)
class Shadowed:
    """A skill that is not used since an earlier folder has one of the same name."""

    skill: SkillSummary
    by: SkillSummary


@dataclass(frozen=True)
class _Listing:
    skills: dict[str, SkillSummary]
    problems: tuple[Problem, ...]
    shadowed: tuple[Shadowed, ...]


class SkillLibrary:
    """All skills below some folders, searched in order.

    A folder holds skills (``<folder>/<skill>/SKILL.md``), groups of them down to four levels, or is itself one. Only
    the frontmatter is read for listing; ``get`` reads the text. Listed once, on first use, until ``refresh``.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self.directories = tuple(directories)

    @classmethod
    def default(
        cls, skills_dirs: Sequence[Path] = (), cwd: Path | None = None, home: Path | None = None
    ) -> SkillLibrary:
        """The usual places, in order.

        These are ``skills_dirs``, then ``.agents/skills`` and ``.claude/skills`` of the project around ``cwd`` and of the
        user (``home``), then the samples that come with kvnotes-local.
        """
        places = list(skills_dirs)
        home = home or Path.home()
        for base in (project_root(cwd or Path.cwd(), home), home):
            places.extend(place for kind in PLACES if (place := base / kind).is_dir() and place not in places)
        return cls([*places, bundled_skills()])

    def refresh(self) -> None:
        """Look again at the next use."""
        self.__dict__.pop("_listing", None)

    @property
    def skills(self) -> tuple[SkillSummary, ...]:
        """Every usable skill, sorted by name."""
        return tuple(sorted(self._listing.skills.values(), key=lambda skill: skill.name))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Broken skills, folders that could not be read, and limits that were hit."""
        return self._listing.problems

    @property
    def shadowed(self) -> tuple[Shadowed, ...]:
        """Skills hidden by one of the same name that was found earlier."""
        return self._listing.shadowed

    def get(self, name: str) -> Skill:
        """The skill of that name, with its text; ``name/references/x.md`` is another file of its folder as a skill of its own.

        Raises:
            SkillError: there is none (the message offers the nearest names), or it can no longer be read.
        """
        name = composed(name)
        summary = self._listing.skills.get(name)
        if summary is not None:
            return load_skill(summary.folder)
        owner, _, relative = name.partition("/")
        if relative and owner in self._listing.skills:
            return load_part(load_skill(self._listing.skills[owner].folder), relative)
        for problem in self.problems:
            if problem.path.name == FILE_NAME and composed(problem.path.parent.name) == owner:
                raise SkillError(f"Skill {owner} is broken: {problem.message}")
        names = list(self._listing.skills)
        near = (
            difflib.get_close_matches(name, names, n=3, cutoff=0.5)
            or [one for one in names if name and name in one][:3]
        )
        if near:
            hint = f"did you mean {' or '.join(near)}?"
        elif names:
            hint = "see 'kvnotes skills list'"
        else:
            hint = f"no skills were found in {', '.join(map(str, self.directories)) or 'no folders at all'}"
        raise SkillError(f"There is no skill {name!r}; {hint}")

    @cached_property
    def _listing(self) -> _Listing:
        skills: dict[str, SkillSummary] = {}
        problems: list[Problem] = []
        shadowed: list[Shadowed] = []
        seen: set[tuple[int, int]] = set()
        for directory in self.directories:
            for path in _Walk(directory, problems, seen).files():
                try:
                    skill = load_summary(path)
                except SkillError as error:
                    problems.append(Problem(path, str(error)))
                    continue
                first = skills.setdefault(skill.name, skill)
                if first is not skill:
                    shadowed.append(Shadowed(skill, first))
        return _Listing(skills, tuple(problems), tuple(shadowed))


class _Walk:
    """SKILL.md files below one folder: bounded, sorted, and safe against links that lead in circles."""

    def __init__(self, directory: Path, problems: list[Problem], seen: set[tuple[int, int]]) -> None:
        self._directory = directory
        self._problems = problems
        self._seen = seen
        self._count = 0

    def files(self) -> list[Path]:
        found: list[Path] = []
        if not self._directory.is_dir():
            self._problems.append(Problem(self._directory, f"{self._directory} is not a folder; check --skills-dir"))
            return found
        level = [str(self._directory)]
        for depth in range(MAX_DEPTH + 1):
            below: list[str] = []
            for folder in level:
                self._enter(folder, depth, found, below)
                if self._count > MAX_FOLDERS:
                    text = f"{self._directory} has more than {MAX_FOLDERS} folders; the rest was not searched"
                    self._problems.append(Problem(self._directory, text))
                    return found
            level = below
        return found

    def _enter(self, folder: str, depth: int, found: list[Path], below: list[str]) -> None:
        self._count += 1
        file = Path(folder, FILE_NAME)
        if file.is_file():
            found.append(file)
            return
        try:
            with os.scandir(folder) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            self._problems.append(
                Problem(Path(folder), f"{folder} cannot be read ({error.strerror}); check its rights")
            )
            return
        for entry in entries:
            if entry.name == FILE_NAME.lower() and entry.is_file():
                found.append(Path(entry.path))
                return
        if depth == MAX_DEPTH or self._is_known(folder):
            return
        below.extend(entry.path for entry in entries if entry.name not in _SKIPPED and _is_folder(entry))

    def _is_known(self, folder: str) -> bool:
        """Whether this folder was descended into before, by whatever path."""
        status = Path(folder).stat()
        identity = (status.st_dev, status.st_ino)
        known = identity in self._seen
        self._seen.add(identity)
        return known


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads in a circle
        return False


def project_root(folder: Path, home: Path) -> Path:
    """The nearest folder from ``folder`` upwards that has a ``.git`` or skills of its own; ``folder`` if there is none.

    The home directory is no project: its skills are the user's, and come later.
    """
    folder = folder.absolute()
    for base in (folder, *folder.parents):
        if base == home:
            break
        if (base / ".git").exists() or any((base / place).is_dir() for place in PLACES):
            return base
    return folder


def bundled_skills() -> Path:
    """The sample skills: ``skills_cache/`` of a checkout, or where the wheel puts them."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent / "skills_cache"
    return (
        checkout if (package.parent / "pyproject.toml").is_file() and checkout.is_dir() else package / "_skills_cache"
    )
