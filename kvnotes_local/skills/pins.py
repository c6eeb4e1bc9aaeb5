"""Which skills are pinned, wherever they lie: folders are remembered when a pinned skill is compiled or used.

``skills gc`` may run from anywhere, as from a timer, and would not find the skills of a project or of ``--skills-dir``.
"""

from __future__ import annotations

from pathlib import Path

from kvnotes_local.errors import SkillError
from kvnotes_local.records import CachedRecord
from kvnotes_local.skills.skill import SkillSummary
from kvnotes_local.skills.skill_file import find_skill_file, load_summary

FILE_NAME = "pinned.json"
_MAX_FOLDERS = 10_000


class PinMemory:
    """Folders of pinned skills, in one file of the cache directory. The pin itself is read from the SKILL.md each time."""

    def __init__(self, cache_dir: Path) -> None:
        self._record = CachedRecord(cache_dir / FILE_NAME, list[str])

    def note(self, skill: SkillSummary) -> None:
        """Remember where a pinned skill lies; a cache that cannot be written is not worth a message."""
        if not skill.settings.pin:
            return
        folder = str(skill.folder.absolute())
        known = self._folders()
        if folder not in known:
            still = [one for one in known if Path(one).is_dir()][-_MAX_FOLDERS:]
            self._record.save([*still, folder])

    def names(self) -> set[str]:
        """Names of the skills in these folders that are there and pinned now."""
        names = set()
        for folder in self._folders():
            file = find_skill_file(Path(folder))
            try:
                skill = load_summary(file) if file is not None else None
            except SkillError:
                continue
            if skill is not None and skill.settings.pin:
                names.add(skill.name)
        return names

    def _folders(self) -> list[str]:
        known = self._record.load() or []
        return [folder for folder in known if "\0" not in folder and Path(folder).is_absolute()]
