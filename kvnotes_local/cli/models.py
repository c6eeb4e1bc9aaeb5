"""``kvnotes models``: what GGUF files are on this machine, and what can be done with one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from kvnotes_local.chat_format.format import ChatFormat, FormatSource, SkillPlace, SystemPlace
from kvnotes_local.cli.options import with_options
from kvnotes_local.cli.output import Output
from kvnotes_local.errors import ModelError
from kvnotes_local.models.files import FoundModel, ModelSource
from kvnotes_local.session.engine_options import EngineOptions
from kvnotes_local.session.quantities import human_bytes
from kvnotes_local.terminal_text import safe_line
from kvnotes_local.wording import counted


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Models that were found on this machine.", no_args_is_help=True)
    group.command("list")(with_options(list_models))
    group.command("info")(with_options(info))
    group.command("add")(with_options(add))
    group.command("default")(with_options(default))
    app.add_typer(group, name="models")


def list_models(
    model: Annotated[
        list[Path] | None, typer.Option("--model", "-m", help="Also look at this file or folder; repeatable.")
    ] = None,
    *,
    output: Output,
) -> None:
    """List the GGUF files of this machine and where they were found."""
    from kvnotes_local.models.scan import scan_models

    scan = scan_models(model or [])
    taken = _default_of(scan.models)
    rows, entries = [], []
    for found in scan.models:
        header = found.header
        arch = header.architecture if header else ""
        quantization = header.quantization if header else ""
        context = header.context_length if header else 0
        rows.append(
            [
                found.name,
                arch or "unreadable",
                quantization,
                human_bytes(found.n_bytes),
                f"{context:,}" if context else "",
                found.source.value,
            ]
        )
        entries.append(
            {
                "name": found.name,
                "path": found.path,
                "source": found.source,
                "bytes": found.n_bytes,
                "architecture": arch or None,
                "quantization": quantization or None,
                "context_length": context or None,
                "problem": found.error,
                "default": found is taken,
            }
        )
    if rows:
        output.table(["name", "architecture", "type", "size", "context", "found in"], rows, right=(3, 4))
    else:
        output.text("No model was found. " + NO_MODEL)
    if taken is not None and len(scan.models) > 1:
        output.text(f"Without --model {taken.name} is taken; `kvnotes models default NAME` changes that.")
    for found in scan.models:
        if found.error is not None:
            output.note(f"{found.name}: {found.error}")
    for place in scan.unreadable:
        output.note(f"{place.path}: {place.reason}")
    output.document(
        {"models": entries, "unreadable": [{"path": place.path, "reason": place.reason} for place in scan.unreadable]}
    )


def add(
    paths: Annotated[list[Path], typer.Argument(help="GGUF files, or folders that hold some.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take them off the list; the files stay.")] = False,
    *,
    output: Output,
) -> None:
    """Have files and folders of models looked at from now on, like the ones that were found."""
    from kvnotes_local.models.added import AddedModels
    from kvnotes_local.models.default import DefaultModel
    from kvnotes_local.models.scan import find_models, scan_models

    added = AddedModels.default()
    before = find_models()
    if before and not remove:
        DefaultModel.default().take(before)  # what is added does not take its place
    for path in paths:
        if remove:
            output.text(f"{path}: {'taken off the list' if added.remove(path) else 'was not on the list'}")
            continue
        found = scan_models([path], env={}, added=()).models
        models = [one for one in found if one.source is ModelSource.GIVEN]
        if not models:
            raise ModelError(f"There is no GGUF model in {path}.")
        usable = [one.name for one in models if one.error is None]
        if not usable:
            raise ModelError(models[0].error or f"There is no model in {path} that can be used.")
        new = added.add(path)
        output.text(f"{path}: {'added' if new else 'was there already'} ({', '.join(usable)})")
    kept = _default_of(find_models())
    if kept is not None and not remove:
        output.text(f"Without --model {kept.name} is taken; `kvnotes models default NAME` changes that.")
    output.document({"added": added.paths})


def default(
    name: Annotated[
        str | None, typer.Argument(help="Name or file of a model; without it the default is shown.")
    ] = None,
    *,
    output: Output,
) -> None:
    """Choose the model that is taken where --model is not given, or say which one that is."""
    from kvnotes_local.models.choice import resolve_model
    from kvnotes_local.models.default import DefaultModel
    from kvnotes_local.models.scan import find_models

    memory, models = DefaultModel.default(), find_models()
    if name is None:
        model = memory.take(models)
    else:
        model = resolve_model(name, models)
        if model.error is not None:
            raise ModelError(model.error)
        memory.choose(model)
    output.text(f"{model.name} is taken where --model is not given ({model.path})")
    output.document({"name": model.name, "path": model.path})


def _default_of(models: Sequence[FoundModel]) -> FoundModel | None:
    """The default, or what would become it; None where it is gone, which a listing does not stop at."""
    from kvnotes_local.models.default import DefaultModel

    try:
        return DefaultModel.default().find(models) or next(iter(models), None)
    except ModelError:
        return None


NO_MODEL = (
    'Install the demo model with pip install "kvnotes-local[demo]", pass --model FILE, add one with `kvnotes models add FILE`, '
    "or name files and folders in $KVNOTES_MODELS."
)


_SYSTEM_LINES = {
    SystemPlace.TURN: "in a turn of its own",
    SystemPlace.FIRST_QUESTION: "in the first question, as the template wants it",
    SystemPlace.LAST_QUESTION: "in the first question (the template would move it to the last one)",
    SystemPlace.NONE: "in the first question (the template has no place for it)",
}


def _format_line(chat_format: ChatFormat) -> str:
    if chat_format.source is FormatSource.TEMPLATE:
        return "from the model's template, compared with it token by token"
    if chat_format.problem is None:
        return "plain labels (the model has no template)"
    return f"plain labels: {safe_line(chat_format.problem)}"


def info(
    name: Annotated[str | None, typer.Argument(help="Name or file; without it the default model.")] = None,
    *,
    options: EngineOptions,
    output: Output,
) -> None:
    """Load a model, measure how it rotates its keys, and say what can be reused."""
    from kvnotes_local.cli.session import open_session

    with open_session(replace(options, model=options.model if name is None else name), output) as session:
        facts = session.engine.info
    chat_format = facts.chat_format
    lines = {
        "name": facts.name,
        "file": str(facts.path),
        "model": facts.description,
        "class": f"{facts.model_class.value}: {facts.class_reason}",
        "parameters": f"{facts.n_params / 1e6:,.0f} million, {human_bytes(facts.n_bytes)}",
        "context": f"{counted(facts.n_ctx, 'token')} here, {facts.n_ctx_train:,} trained"
        + (f", sliding window {facts.n_swa:,}" if facts.n_swa else ""),
        "KV cache": f"{facts.type_k.name}/{facts.type_v.name}, {human_bytes(facts.kv_bytes_per_token)} a token",
        "chat format": _format_line(chat_format),
        "system text": _SYSTEM_LINES[chat_format.system_place],
        "skills go in as": f"{chat_format.skill_place}s"
        if chat_format.skill_place is not SkillPlace.ACKNOWLEDGED
        else "user turns with a short answer",
        "fingerprint": facts.fingerprint[:16],
    }
    width = max(map(len, lines))
    for label, value in lines.items():
        output.text(f"{label.ljust(width)}  {value}")
    output.document(
        {
            "name": facts.name,
            "path": facts.path,
            "architecture": facts.arch,
            "class": facts.model_class,
            "reason": facts.class_reason,
            "rotation_residual": facts.rotation_residual,
            "n_params": facts.n_params,
            "bytes": facts.n_bytes,
            "n_ctx": facts.n_ctx,
            "n_ctx_train": facts.n_ctx_train,
            "sliding_window": facts.n_swa,
            "kv_type": [facts.type_k.name, facts.type_v.name],
            "kv_bytes_per_token": facts.kv_bytes_per_token,
            "format": {
                "source": chat_format.source,
                "proven": chat_format.proven,
                "problem": chat_format.problem,
                "system": chat_format.system_place,
                "system_mid_chat": chat_format.system_mid_chat,
                "default_system": chat_format.default_system,
            },
            "fingerprint": facts.fingerprint,
        }
    )
