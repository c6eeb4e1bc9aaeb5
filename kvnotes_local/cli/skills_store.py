"""``kvnotes skills remove`` and ``gc``: making room. Skills themselves are never touched, only what was compiled."""

from __future__ import annotations

from typing import Annotated

import typer

from kvnotes_local.cli.options import CacheDirOption, EngineOptions
from kvnotes_local.cli.output import Output, human_bytes
from kvnotes_local.cli.quantities import parse_age, parse_bytes
from kvnotes_local.errors import ArtifactError, UsageError
from kvnotes_local.wording import counted

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")]


def remove_artifacts(
    names: Annotated[list[str] | None, typer.Argument(help="Skills whose artifacts shall go.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Artifacts of every skill.")] = False,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="Only artifacts for models whose name holds this; repeatable."),
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
    store = artifact_store(EngineOptions(cache_dir=cache_dir))
    doomed, known = [], set()
    for place in (store, ImportShelf(store).waiting):
        for one in place.list():
            skill = one.path.stem.rsplit("-", 1)[0] if one.meta is None else one.meta.skill
            owner = skill.partition("/")[0]
            known.add(owner)
            if not (everything or owner in (names or []) or skill in (names or [])):
                continue
            named = one.meta is not None and any(
                text.casefold() in one.meta.model_name.casefold() for text in model or []
            )
            if named or not model:
                doomed.append((skill, one))
                if not dry_run:
                    place.remove_path(one.path)
    if missing := [name for name in names or [] if name.partition("/")[0] not in known]:
        there = f" Compiled are: {', '.join(sorted(known))}." if known else " Nothing is compiled."
        raise ArtifactError(f"There are no artifacts of {', '.join(missing)}.{there}")
    total = sum(one.n_bytes for _, one in doomed)
    for skill, one in doomed:
        output.text(f"{skill}  {one.model_name or 'damaged'}  {human_bytes(one.n_bytes)}")
    output.text(f"{'Would delete' if dry_run else 'Deleted'} {counted(len(doomed), 'artifact')}, {human_bytes(total)}.")
    output.document(
        {
            "deleted": [{"skill": skill, "path": one.path, "bytes": one.n_bytes} for skill, one in doomed],
            "bytes": total,
            "dry_run": dry_run,
        }
    )


def collect(
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", help="Delete the least recently used until this much is left, as 2G.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Delete what was not used for this long, as 30d.")
    ] = None,
    dry_run: DryRunOption = False,
    cache_dir: CacheDirOption = None,
    *,
    output: Output,
) -> None:
    """Delete artifacts that were not used for long or that another version made, and what interrupted writes left.

    Those of pinned skills stay."""
    from kvnotes_local.cli.session import artifact_store
    from kvnotes_local.skills.imports import ImportShelf
    from kvnotes_local.skills.library import SkillLibrary

    limit = None if max_bytes is None else parse_bytes(max_bytes)
    age = None if older_than is None else parse_age(older_than)
    store = artifact_store(EngineOptions(cache_dir=cache_dir))
    pinned = [skill.name for skill in SkillLibrary.default().skills if skill.settings.pin]
    doomed = [
        *store.gc(limit, age, dry_run=dry_run, keep=pinned),
        *ImportShelf(store).waiting.gc(older_than=age, dry_run=dry_run),
    ]
    total = sum(one.n_bytes for one in doomed)
    for one in doomed:
        what = one.problem if one.meta is None else f"{one.meta.skill}  {one.meta.model_name}"
        output.text(f"{what}  {human_bytes(one.n_bytes)}")
    left = store.total_bytes() - (total if dry_run else 0)
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
