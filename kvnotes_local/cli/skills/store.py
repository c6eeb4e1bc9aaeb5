"""``kvnotes skills remove`` and ``gc``: making room. Skills themselves are never touched, only what was compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvnotes_local.cli.options import CacheDirOption, SkillsDirOption
from kvnotes_local.cli.output import Output
from kvnotes_local.errors import UsageError
from kvnotes_local.session.places import Places
from kvnotes_local.session.quantities import human_bytes, parse_age, parse_bytes
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from kvnotes_local.artifacts.meta import ArtifactMeta

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
    from kvnotes_local.skills.housekeeping import remove_artifacts_of

    if bool(names) == everything:
        raise UsageError("Name the skills whose artifacts shall be deleted, or use --all.")
    if not all(text.strip() for text in model or []):
        raise UsageError("--model is empty. Give a part of a model's name, or leave it out for all models.")
    places = Places.usual(cache=cache_dir)
    wanted = {text: _model_named(text, places) for text in model or []}
    doomed = remove_artifacts_of(places.artifact_store(), None if everything else names, wanted, dry_run=dry_run)
    total = sum(one.stored.n_bytes for one in doomed)
    for one in doomed:
        output.text(f"{one.skill}  {one.stored.model_name or 'damaged'}  {human_bytes(one.stored.n_bytes)}")
    output.text(f"{'Would delete' if dry_run else 'Deleted'} {counted(len(doomed), 'artifact')}, {human_bytes(total)}.")
    output.document(
        {
            "deleted": [{"skill": one.skill, "path": one.stored.path, "bytes": one.stored.n_bytes} for one in doomed],
            "bytes": total,
            "dry_run": dry_run,
        }
    )


def _model_named(text: str, places: Places) -> Callable[[ArtifactMeta], bool]:
    """Whether an artifact is for the model that ``--model`` means: a file's, or those with this in their name."""
    if Path(text).is_file():
        fingerprint = places.fingerprint(Path(text))
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
    from kvnotes_local.skills.housekeeping import collect_garbage
    from kvnotes_local.skills.pins import PinMemory

    limit = None if max_bytes is None else parse_bytes(max_bytes)
    age = None if older_than is None else parse_age(older_than)
    places = Places.usual(cache=cache_dir, skills_dirs=skills_dir)
    garbage = collect_garbage(
        places.artifact_store(),
        places.library(),
        PinMemory(places.cache),
        max_bytes=limit,
        older_than=age,
        dry_run=dry_run,
    )
    doomed = garbage.files
    total = sum(one.n_bytes for one in doomed)
    for one in doomed:
        what = one.problem if one.meta is None else f"{one.meta.skill}  {one.meta.model_name}"
        output.text(f"{what}  {human_bytes(one.n_bytes)}")
    output.text(
        f"{'Would delete' if dry_run else 'Deleted'} {counted(len(doomed), 'file')}, {human_bytes(total)}; "
        f"{human_bytes(garbage.bytes_left)} stay."
    )
    output.document(
        {
            "deleted": [
                {"skill": one.meta.skill if one.meta else None, "path": one.path, "bytes": one.n_bytes}
                for one in doomed
            ],
            "bytes": total,
            "bytes_left": garbage.bytes_left,
            "dry_run": dry_run,
        }
    )
