"""``kvnotes skills remove`` and ``gc``: making room. Skills themselves are never touched, only what was compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvnotes_local.cli.options import CacheDirOption, EngineOptions, SkillsDirOption
from kvnotes_local.cli.output import Output, human_bytes
from kvnotes_local.cli.quantities import parse_age, parse_bytes
from kvnotes_local.errors import ArtifactError, UsageError
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from kvnotes_local.engine.artifact_meta import ArtifactMeta

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")]


def remove_artifacts(
    names: Annotated[list[str] | None, typer.Argument(help="Skills whose artifacts shall go.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Artifacts of every skill.")] = False,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="Only artifacts for this GGUF file, or for models whose name holds this."),
    ] = None,
    dry_run: DryRunOption = False,
    cache_dir: CacheDirOption = None,
    *,
    output: Output,
) -> None:
    """Delete the compiled forms of skills. Their SKILL.md files stay."""
    from kvnotes_local.cli.session import artifact_store
    from kvnotes_local.skills.imports import ImportShelf

    if bool(names) == everything:
        raise UsageError("Name the skills whose artifacts shall be deleted, or use --all.")
    if not all(text.strip() for text in model or []):
        raise UsageError("--model is empty. Give a part of a model's name, or leave it out for all models.")
    options = EngineOptions(cache_dir=cache_dir)
    store = artifact_store(options)
    doomed, known, models = [], set(), set()
    wanted = [_model_named(text, options) for text in model or []]
    for place in (store, ImportShelf(store).waiting):
        for one in place.list():
            skill = one.path.stem.rsplit("-", 1)[0] if one.meta is None else one.meta.skill
            owner = skill.partition("/")[0]
            known |= {owner, skill}
            models.add(one.model_name)
            if not (everything or owner in (names or []) or skill in (names or [])):
                continue
            if not wanted or (one.meta is not None and any(is_meant(one.meta) for is_meant in wanted)):
                doomed.append((skill, place, one))
    if missing := [name for name in names or [] if name not in known]:
        there = f" Compiled are: {', '.join(sorted(known))}." if known else " Nothing is compiled."
        raise ArtifactError(f"There are no artifacts of {', '.join(missing)}.{there}")
    if model and not doomed:
        there = f" There are some for {', '.join(sorted(filter(None, models)))}." if any(models) else ""
        raise ArtifactError(f"There are no such artifacts for {', '.join(model)}.{there}")
    if not dry_run:
        for _, place, one in doomed:
            place.remove_path(one.path)
    total = sum(one.n_bytes for _, _, one in doomed)
    for skill, _, one in doomed:
        output.text(f"{skill}  {one.model_name or 'damaged'}  {human_bytes(one.n_bytes)}")
    output.text(f"{'Would delete' if dry_run else 'Deleted'} {counted(len(doomed), 'artifact')}, {human_bytes(total)}.")
    output.document(
        {
            "deleted": [{"skill": skill, "path": one.path, "bytes": one.n_bytes} for skill, _, one in doomed],
            "bytes": total,
            "dry_run": dry_run,
        }
    )


def _model_named(text: str, options: EngineOptions) -> Callable[[ArtifactMeta], bool]:
    """Whether an artifact is for the model that ``--model`` means: a file's, or those with this in their name."""
    from kvnotes_local.cli.session import cache_directory
    from kvnotes_local.engine.fingerprint import model_fingerprint

    if Path(text).is_file():
        fingerprint = model_fingerprint(Path(text), cache_directory(options))
        return lambda meta: meta.model_fingerprint == fingerprint
    return lambda meta: text.casefold() in meta.model_name.casefold()


def collect(
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", help="Delete the least recently used until this much is left, as 2G.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Delete what was not used for this long, as 30d.")
    ] = None,
    dry_run: DryRunOption = False,
    skills_dir: SkillsDirOption = None,
    cache_dir: CacheDirOption = None,
    *,
    output: Output,
) -> None:
    """Delete artifacts that were not used for long or that another version made, and what interrupted writes left.

    Those of pinned skills stay."""
    from kvnotes_local.cli.session import artifact_store, cache_directory
    from kvnotes_local.skills.artifact_store import SUFFIX
    from kvnotes_local.skills.imports import ImportShelf
    from kvnotes_local.skills.library import SkillLibrary
    from kvnotes_local.skills.pins import PinMemory

    limit = None if max_bytes is None else parse_bytes(max_bytes)
    age = None if older_than is None else parse_age(older_than)
    options = EngineOptions(cache_dir=cache_dir)
    store = artifact_store(options)
    pinned = {skill.name for skill in SkillLibrary.default(skills_dir or []).skills if skill.settings.pin}
    pinned |= PinMemory(cache_directory(options)).names()
    before = store.total_bytes()
    of_store = store.gc(limit, age, dry_run=dry_run, keep=pinned)
    doomed = [*of_store, *ImportShelf(store).waiting.gc(older_than=age, dry_run=dry_run, keep=pinned)]
    total = sum(one.n_bytes for one in doomed)
    for one in doomed:
        what = one.problem if one.meta is None else f"{one.meta.skill}  {one.meta.model_name}"
        output.text(f"{what}  {human_bytes(one.n_bytes)}")
    left = before - sum(one.n_bytes for one in of_store if one.path.suffix == SUFFIX)
    output.text(
        f"{'Would delete' if dry_run else 'Deleted'} {counted(len(doomed), 'file')}, {human_bytes(total)}; "
        f"{human_bytes(left)} stay."
    )
    output.document(
        {
            "deleted": [
                {"skill": one.meta.skill if one.meta else None, "path": one.path, "bytes": one.n_bytes}
                for one in doomed
            ],
            "bytes": total,
            "bytes_left": left,
            "dry_run": dry_run,
        }
    )
