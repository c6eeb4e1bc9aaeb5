"""Skills in the Agent Skills format: a folder with a ``SKILL.md``, whose body is what gets compiled.

Reading is lenient where other clients are (a wrong name warns and loads) and strict where a model would get something
else than the author wrote: the file must be UTF-8 text, of at most 1 MiB, with a description.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from kvnotes_local.errors import SkillError
from kvnotes_local.skills.frontmatter import normalize, read_frontmatter, split_frontmatter
from kvnotes_local.skills.frontmatter_yaml import FrontmatterError, clean
from kvnotes_local.skills.settings import read_settings
from kvnotes_local.skills.skill import Skill, SkillSummary
from kvnotes_local.spelling import composed, spelled_as_there

FILE_NAME = "SKILL.md"
MAX_FILE_BYTES = 1024 * 1024
MAX_NAME = 64
_HEAD_BYTES = 2048
MAX_DESCRIPTION = 1024
MAX_COMPATIBILITY = 500

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_NO_VALUE = ("", "~", "null")
_KNOWN = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")


def is_skill_name(name: str) -> bool:
    """Is it a name by the rules: 1 to ``MAX_NAME`` of a-z, 0-9 and single hyphens, none at either end?"""
    return len(name) <= MAX_NAME and bool(_NAME.fullmatch(name))


def find_skill_file(folder: Path) -> Path | None:
    """The folder's SKILL.md (or skill.md), if it has one."""
    for name in (FILE_NAME, FILE_NAME.lower()):
        path = folder / name
        if path.is_file():
            return path
    return None


def load_skill(folder: Path) -> Skill:
    """Read a skill's SKILL.md.

    Bytes that are not UTF-8 are refused, not replaced: a model would read the replacement characters as text.

    Raises:
        SkillError: no such file, larger than 1 MiB, not UTF-8, no frontmatter, no description, or unreadable YAML.
    """
    path = find_skill_file(folder)
    if path is None:
        raise SkillError(f"{folder} has no {FILE_NAME}; a skill is a folder with that file in it")
    text = _decode(_read(path), path)
    try:
        block, body, body_line = split_frontmatter(normalize(text))
        summary = _summarize(folder, block, body_line)
    except FrontmatterError as error:
        raise SkillError(f"{path} {error}") from error
    stripped = body.lstrip("\n")
    warnings = summary.warnings
    if not stripped.strip():
        warnings = (*warnings, "there is no text after the frontmatter, so there is nothing to compile")
    return Skill(
        **{**vars(summary), "warnings": warnings},
        body=stripped.rstrip(),
        body_line=body_line + len(body) - len(stripped),
    )


def load_summary(path: Path) -> SkillSummary:
    """Read only the frontmatter of a SKILL.md; ``path`` is the file.

    Raises:
        SkillError: as ``load_skill``, for what lies in the frontmatter and for a file that is too large.
    """
    try:
        _check_size(path)
        try:
            block, _, body_line = split_frontmatter(normalize(_decode(_read_head(path, _HEAD_BYTES), path)))
        except FrontmatterError:
            # The usual block is a few hundred bytes; the file is read again only if that one is long or broken.
            block, _, body_line = split_frontmatter(normalize(_decode(_read(path), path)))
        return _summarize(path.parent, block, body_line)
    except FrontmatterError as error:
        raise SkillError(f"{path} {error}") from error


def load_reference(skill: SkillSummary, relative: str) -> str:
    """Text of another file of the skill, such as ``references/limits.md``, with line feeds as line ends.

    Raises:
        SkillError: the path is absolute or leads out of the skill's folder (also by a symbolic link), or the file is
            missing, larger than 1 MiB, or not UTF-8.
    """
    pure = PurePosixPath(relative.replace("\\", "/"))
    shown = clean(relative)
    unsafe = not pure.parts or pure.is_absolute() or ".." in pure.parts or ":" in pure.parts[0] or "\0" in relative
    if unsafe:
        raise SkillError(
            f"{shown!r} is no file of skill {skill.name}; give a path inside its folder, like references/x.md"
        )
    try:
        folder = skill.folder.resolve(strict=True)
        path = spelled_as_there(folder, pure.parts).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise SkillError(
            f"Skill {skill.name} has no file {shown!r}; look into {skill.folder} for what there is"
        ) from error
    if not path.is_relative_to(folder):
        raise SkillError(f"{shown!r} of skill {skill.name} is a link out of the skill's folder; copy the file into it")
    if not path.is_file():
        raise SkillError(f"{shown!r} of skill {skill.name} is not a file; look into {skill.folder} for what there is")
    return normalize(_decode(_read(path), path))


def load_part(skill: Skill, relative: str) -> Skill:
    """Another file of the skill, such as ``references/limits.md``, as a skill of its own: ``name/references/limits.md``.

    Raises:
        SkillError: as ``load_reference``, or the file is empty.
    """
    text = load_reference(skill, relative).strip("\n").rstrip()
    path = PurePosixPath(relative.replace("\\", "/"))
    if not text:
        raise SkillError(f"{path} of skill {skill.name} is empty; write what the model shall know")
    return replace(skill, name=composed(f"{skill.name}/{path}"), body=text, body_line=1, warnings=())


def _read(path: Path) -> bytes:
    data = _read_bytes(path, MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise _too_large(path)
    return data


def _check_size(path: Path) -> None:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise _too_large(path)
    except OSError:
        return  # reading it says what is wrong


def _too_large(path: Path) -> SkillError:
    return SkillError(
        f"{path} is larger than {MAX_FILE_BYTES // 1024} KiB; move parts of it into files under references/"
    )


def _read_head(path: Path, size: int) -> bytes:
    """Whole lines from the start of the file, about ``size`` bytes of them, so that no character is cut."""
    data = _read_bytes(path, size)
    return data if len(data) < size else data[: data.rfind(b"\n") + 1]


def _read_bytes(path: Path, size: int) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            # One call gets all there is of a regular file, short of an interruption.
            data = file.read(size)
            while len(data) < size and (more := file.read(size - len(data))):
                data += more
            return data
    except OSError as error:
        raise SkillError(
            f"{path} cannot be read ({error.strerror or error}); check that it exists and its rights"
        ) from error


def _decode(data: bytes, path: Path) -> str:
    if b"\0" in data:
        raise SkillError(f"{path} contains zero bytes, so it is no UTF-8 text; save it as UTF-8")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SkillError(
            f"{path} is not UTF-8 text (byte {data[error.start]:#04x} in line {line}); save it as UTF-8"
        ) from error


def _summarize(folder: Path, block: str, body_line: int) -> SkillSummary:
    keys, warnings = read_frontmatter(block, body_line - block.count("\n") - 2)
    description = _text(keys, "description", warnings)
    if not description:
        raise FrontmatterError(
            "has no description; add 'description: what it is for and when to use it' to the frontmatter"
            + (f" ({warnings[0]})" if warnings else "")
        )
    if len(description) > MAX_DESCRIPTION:
        warnings.append(f"description has {len(description)} characters; other clients allow {MAX_DESCRIPTION}")
    compatibility = _text(keys, "compatibility", warnings)
    if len(compatibility) > MAX_COMPATIBILITY:
        warnings.append(f"compatibility has {len(compatibility)} characters; other clients allow {MAX_COMPATIBILITY}")
    metadata = _metadata(keys.get("metadata"), warnings)
    settings, more = read_settings(metadata)
    return SkillSummary(
        name=_name(_text(keys, "name", warnings), folder, warnings),
        description=description,
        folder=folder,
        license=_text(keys, "license", warnings),
        compatibility=compatibility,
        metadata=metadata,
        allowed_tools=_tools(keys.get("allowed-tools")),
        extra={key: value for key, value in keys.items() if key not in _KNOWN},
        warnings=(*warnings, *more),
        settings=settings,
    )


def _text(keys: Mapping[str, Any], key: str, warnings: list[str]) -> str:
    value = keys.get(key, "")
    if isinstance(value, (list, dict)):
        warnings.append(f"{key} is a list or mapping; it is ignored, write it as one line of text")
        return ""
    text = clean(str(value))
    return "" if text in _NO_VALUE else text


def _name(name: str, folder: Path, warnings: list[str]) -> str:
    name, folder_name = composed(name), composed(clean(folder.name) or clean(folder.absolute().name))
    if not name:
        if not folder_name:
            raise FrontmatterError("has no name; add 'name: my-skill' to the frontmatter")
        warnings.append(f"name is missing; the folder's name {folder_name!r} is used")
        return folder_name
    if not is_skill_name(name):
        warnings.append(
            f"name {name[:80]!r} breaks the rules: 1 to {MAX_NAME} of a-z, 0-9 and single hyphens, none at either end"
        )
    if name != folder_name:
        warnings.append(f"name {name[:80]!r} differs from its folder {folder_name!r}; other clients may refuse it")
    return name


def _metadata(value: Any, warnings: list[str]) -> dict[str, str]:
    if value is None or value in _NO_VALUE:
        return {}
    if not isinstance(value, dict):
        warnings.append("metadata is not a mapping; it is ignored, write 'key: value' lines indented below it")
        return {}
    metadata: dict[str, str] = {}
    for key, item in value.items():
        if isinstance(item, (list, dict)):
            warnings.append(f"metadata {key} is a list or mapping; it is ignored, write it as one line of text")
        else:
            metadata[key] = item
    return metadata


def _tools(value: Any) -> tuple[str, ...]:
    """Names in ``Read Bash(git:*)`` or ``Read, Bash(git *)``, or in a list."""
    if isinstance(value, list):
        return tuple(str(item) for item in value)
    return tuple(re.findall(r"(?:[^\s,()]|\([^()]*\))+", value)) if isinstance(value, str) else ()
