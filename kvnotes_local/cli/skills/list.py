"""``kvnotes skills list`` and ``show``: what there is, and what of it is compiled. No model is loaded."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvnotes_local.cli.options import CacheDirOption, SkillsDirOption
from kvnotes_local.cli.output import Output
from kvnotes_local.session.engine_options import EngineOptions
from kvnotes_local.session.places import Places
from kvnotes_local.session.quantities import human_age, human_bytes
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from kvnotes_local.skills.status import ArtifactStatus
    from kvnotes_local.skills.verdicts import Verdict

_WIDTH = 100
_CHARS_PER_TOKEN = 4

ModelsOption = Annotated[
    list[str] | None, typer.Option("--model", "-m", help="Only this model; repeatable. A GGUF file or a name.")
]


def list_skills(
    model: ModelsOption = None,
    skills_dir: SkillsDirOption = None,
    cache_dir: CacheDirOption = None,
    *,
    output: Output,
) -> None:
    """List the skills that were found, and for which models they are compiled."""
    places = Places.usual(cache=cache_dir, skills_dirs=skills_dir)
    library = places.library()
    states = places.artifact_states(library)
    wanted = _fingerprints(model or [], places)
    rows, entries = [], []
    for skill in library.skills:
        found = [one for one in states.pop(skill.name, ()) if _is_of(one, wanted)]
        rows.extend(_rows(skill.name, found, wanted))
        entries.append(
            {
                "name": skill.name,
                "description": skill.description,
                "folder": skill.folder,
                "warnings": skill.warnings,
                "artifacts": [_entry(one) for one in found],
            }
        )
    if rows:
        output.table(["skill", "model", "status", "tokens", "size", "last used"], rows, right=(3, 4))
    else:
        output.text("No skill was found. A skill is a folder with a SKILL.md; name folders with --skills-dir.")
    orphans = [one for found in states.values() for one in found if _is_of(one, wanted)]
    if orphans:
        n_bytes = human_bytes(sum(one.stored.n_bytes for one in orphans))
        output.note(
            f"Of skills that are not here, or damaged: {counted(len(orphans), 'artifact')} ({n_bytes}), "
            f"{', '.join(sorted(states))}. 'kvnotes skills remove NAME' deletes them."
        )
    for problem in library.problems:
        output.note(problem.message)
    for shadowed in library.shadowed:
        output.note(f"{shadowed.skill.folder} is not used: {shadowed.by.folder} has the same name and comes first.")
    output.document(
        {
            "skills": entries,
            "orphans": [_entry(one) for one in orphans],
            "problems": [{"path": problem.path, "message": problem.message} for problem in library.problems],
            "shadowed": [{"folder": one.skill.folder, "by": one.by.folder} for one in library.shadowed],
        }
    )


def show_skill(
    name: Annotated[str, typer.Argument(help="Skill to show.")],
    skills_dir: SkillsDirOption = None,
    cache_dir: CacheDirOption = None,
    *,
    output: Output,
) -> None:
    """Show a skill: what it says about itself, its fields, its files and its artifacts."""
    places = Places.usual(cache=cache_dir, skills_dirs=skills_dir)
    library = places.library()
    skill = library.get(name)
    found = [
        one
        for one in places.artifact_states(library).get(skill.name.partition("/")[0], ())
        if _belongs(one, skill.name)
    ]
    references = [path.relative_to(skill.folder).as_posix() for path in _references(skill.folder)]
    settings = skill.settings
    facts = {
        "name": skill.name,
        "description": skill.description,
        "folder": str(skill.folder),
        "license": skill.license,
        "compatibility": skill.compatibility,
        "allowed tools": " ".join(skill.allowed_tools),
        "length": f"about {counted(len(skill.text()) // _CHARS_PER_TOKEN, 'token')}",
        "references": ", ".join(references),
        "pinned": "yes" if settings.pin else "",
        "seam tokens": "" if settings.repair is None else str(settings.repair),
        "stored as": "" if settings.store is None else settings.store.value,
    }
    for key, value in facts.items():
        if value:
            output.text(f"{key:14}{value}")
    for field, default in skill.fields.items():
        output.text(f"{'field':14}{field}: {'no default' if default is None else default}")
    for key, value in {**skill.metadata, **skill.extra}.items():
        output.text(f"{'also':14}{key}: {value}")
    for warning in skill.warnings:
        output.note(f"{skill.name}: {warning}")
    if found:
        output.text()
        rows = [row[1:] for row in _rows(skill.name, found, {})]
        output.table(["model", "status", "tokens", "size", "last used"], rows, right=(2, 3))
    else:
        output.text(f"\nNot compiled. 'kvnotes skills compile {skill.name}' does that.")
    output.document(
        {
            "name": skill.name,
            "description": skill.description,
            "folder": skill.folder,
            "license": skill.license,
            "compatibility": skill.compatibility,
            "allowed_tools": skill.allowed_tools,
            "metadata": dict(skill.metadata),
            "extra": dict(skill.extra),
            "settings": settings,
            "fields": skill.fields,
            "references": references,
            "warnings": skill.warnings,
            "artifacts": [_entry(one) for one in found],
        }
    )


def _fingerprints(models: list[str], places: Places) -> dict[str, str]:
    """Fingerprints and names of the models that ``--model`` means; hashing a large file takes its time, once."""
    from kvnotes_local.session.opening import chosen_model

    found = [chosen_model(EngineOptions(model=name)) for name in models]
    return {places.fingerprint(one.path): one.name for one in found}


def _belongs(one: ArtifactStatus, name: str) -> bool:
    """Whether an artifact is the skill's, or where a part of one is shown (``name/references/x.md``) that part's."""
    meta = one.stored.meta
    return "/" not in name or (meta is not None and meta.skill == name)


def _is_of(one: ArtifactStatus, wanted: dict[str, str]) -> bool:
    return not wanted or (one.stored.meta is not None and one.stored.meta.model_fingerprint in wanted)


def _rows(
    name: str, found: list[ArtifactStatus] | tuple[ArtifactStatus, ...], wanted: dict[str, str]
) -> list[list[str]]:
    from kvnotes_local.skills.status import ArtifactState

    rows = []
    for one in found:
        meta = one.stored.meta
        values = ", ".join(f"{field}={value}" for field, value in one.values)
        status = one.state.value + (f": {one.reason}" if one.reason and one.state is not ArtifactState.DAMAGED else "")
        status += "".join(f", {_measured(verdict)}" for verdict in one.verdicts)
        if meta is not None and meta.origin and not one.reason:
            status += f", {meta.origin}"
        if meta is not None and meta.skill != name:
            status += f" ({meta.skill.partition('/')[2]})"
        rows.append(
            [
                name,
                one.stored.model_name or "?",
                status + (f" ({values})" if values else ""),
                "" if meta is None else f"{meta.n_tokens:,}",
                human_bytes(one.stored.n_bytes),
                human_age(time.time() - one.stored.last_used),
            ]
        )
    there = {one.stored.meta.model_fingerprint for one in found if one.stored.meta is not None}
    missing = [wanted[one] for one in wanted if one not in there] if wanted else ([] if found else [""])
    rows.extend([name, model, "not compiled", "", "", ""] for model in missing)
    return rows


def _measured(verdict: Verdict) -> str:
    """A verdict in a few words: what a splice into a cache of this type does."""
    if verdict.outcome == "failed":
        return f"{verdict.conditions.kv_name.lower()}: read"
    return f"{verdict.conditions.kv_name.lower()}: spliced, seam of {verdict.repair_tokens}"


def _entry(one: ArtifactStatus) -> dict[str, object]:
    meta = one.stored.meta
    entry: dict[str, object] = {
        "status": one.state.value,
        "reason": one.reason or None,
        "verdicts": [
            {
                "kv_type": verdict.conditions.kv_name.lower(),
                "verdict": verdict.outcome,
                "repair_tokens": verdict.repair_tokens,
            }
            for verdict in one.verdicts
        ],
        "path": one.stored.path,
        "bytes": one.stored.n_bytes,
        "last_used": int(one.stored.last_used),
    }
    if meta is not None:
        entry |= {
            "skill": meta.skill,
            "model": meta.model_name,
            "model_sha256": meta.model_fingerprint,
            "n_tokens": meta.n_tokens,
            "values": dict(one.values),
            "created": meta.created,
            "origin": meta.origin or None,
        }
    return entry


def _references(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "references").rglob("*") if path.is_file())[:100]
