"""``kvnotes skills export`` and ``import``: compiled skills between machines that have the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvnotes_local.cli.options import CacheDirOption, ModelOption, SkillsDirOption, ThreadsOption
from kvnotes_local.cli.output import Output
from kvnotes_local.errors import ArtifactError
from kvnotes_local.session.engine_options import EngineOptions, KvType
from kvnotes_local.session.places import Places
from kvnotes_local.session.quantities import human_bytes
from kvnotes_local.wording import counted


def export_skill_file(
    name: Annotated[str, typer.Argument(help="Skill to export.")],
    target: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default: NAME.kvnotes.zip.")
    ] = None,
    model: ModelOption = None,
    skills_dir: SkillsDirOption = None,
    cache_dir: CacheDirOption = None,
    *,
    output: Output,
) -> None:
    """Write a skill and what is compiled of it for one model into one file."""
    from kvnotes_local.session.opening import chosen_model
    from kvnotes_local.skills.status import exportable
    from kvnotes_local.skills.transfer import EXPORT_SUFFIX, export_skill

    places = Places.usual(cache=cache_dir, skills_dirs=skills_dir)
    library = places.library()
    skill = library.get(name)
    current = exportable(library, places.artifact_store(), skill)
    models = {fingerprint: files[0].model_name for fingerprint, files in current.items()}
    if model is not None:
        fingerprint = places.fingerprint(chosen_model(EngineOptions(model=model)).path)
    elif len(models) > 1:
        raise ArtifactError(
            f"{name} is compiled for {', '.join(models.values())}. Say with --model which one is meant."
        )
    else:
        fingerprint = next(iter(models), "")
    chosen = current.get(fingerprint, ())
    target = target or Path(f"{skill.name}{EXPORT_SUFFIX}")
    n_bytes = export_skill(skill, chosen, target)
    output.text(
        f"{target} is written: {skill.name} for {models[fingerprint]}, {counted(len(chosen), 'artifact')}, "
        f"{human_bytes(n_bytes)}."
    )
    output.document(
        {
            "skill": skill.name,
            "model": models[fingerprint],
            "path": target,
            "bytes": n_bytes,
            "n_artifacts": len(chosen),
        }
    )


def import_skill_file(
    file: Annotated[Path, typer.Argument(help="File that 'kvnotes skills export' wrote.")],
    to: Annotated[
        Path | None,
        typer.Option("--to", file_okay=False, help="Folder for the skill; default: .agents/skills at home."),
    ] = None,
    model: ModelOption = None,
    later: Annotated[bool, typer.Option("--later", help="Check against the model at the first use, not now.")] = False,
    threads: ThreadsOption = 0,
    cache_dir: CacheDirOption = None,
    *,
    output: Output,
) -> None:
    """Take in an exported skill, and compare a sample of its artifacts with what the model here computes."""
    from kvnotes_local.skills.imports import ImportShelf
    from kvnotes_local.skills.library import PLACES
    from kvnotes_local.skills.transfer import import_skill

    options = EngineOptions(model, KvType.F16, 0, -1, threads, cache_dir)
    shelf = ImportShelf(Places.usual(cache=cache_dir).artifact_store())
    imported = import_skill(file, shelf, to or Path.home() / PLACES[0])
    entries = [
        {"skill": one.meta.skill, "n_tokens": one.meta.n_tokens, "bytes": one.n_bytes, "status": "not checked yet"}
        for one in imported.waiting
        if one.meta is not None
    ]
    output.text(f"{imported.skill.name} is in {imported.skill.folder}.")
    checked = not later and _check_now(imported.model_fingerprint, options, output)
    if checked:
        from kvnotes_local.cli.session import open_session
        from kvnotes_local.skills.library import SkillLibrary

        library = SkillLibrary([imported.skill.folder])
        with open_session(options, output) as session:
            for entry, one in zip(entries, imported.waiting, strict=True):
                assert one.meta is not None
                skill = library.get(one.meta.skill)
                values = {field.name: field.value for field in one.meta.fields}
                compiler = session.compiler_for(one.meta.store)
                there = compiler.task(skill, values=values).path.exists()
                found = compiler.find(skill, values=values)
                if found is None:
                    raise ArtifactError(
                        f"The artifact of {one.meta.skill} was made in another way than this version makes it, so it would "
                        f"never be used. Compile it here with 'kvnotes skills compile {one.meta.skill}'."
                    )
                entry |= {"status": "was there already" if there else "checked", "path": found.path}
    for entry, one in zip(entries, imported.waiting, strict=True):
        length = counted(one.meta.n_tokens if one.meta else 0, "token")
        output.text(f"{entry['skill']}: {length} for {imported.model_name}, {entry['status']}")
    if not checked:
        output.text(f"They are checked before they are used for the first time with {imported.model_name}.")
    output.document(
        {
            "skill": imported.skill.name,
            "folder": imported.skill.folder,
            "model": imported.model_name,
            "artifacts": entries,
        }
    )


def _check_now(fingerprint: str, options: EngineOptions, output: Output) -> bool:
    """Whether the model that ``--model`` means (or the first one) is the one that the artifacts are for."""
    from kvnotes_local.session.opening import chosen_model

    found = chosen_model(options)
    if Places.usual(cache=options.cache_dir).fingerprint(found.path) == fingerprint:
        return True
    if options.model is not None:
        output.note(f"{found.name} is another model than the one that these artifacts are for.")
    return False
