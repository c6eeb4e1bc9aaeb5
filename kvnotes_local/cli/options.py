"""Options that several commands share, and what is made of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from kvnotes_local.cli.output import Output
from kvnotes_local.session.engine_options import EngineOptions, KvType

ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="GGUF file, or the name of a model that was found.")
]
KvTypeOption = Annotated[KvType, typer.Option("--kv-type", help="Element type of the live KV cache.")]
ContextOption = Annotated[int, typer.Option("--n-ctx", min=0, help="Context size in tokens; 0 chooses.")]
GpuLayersOption = Annotated[int, typer.Option("--n-gpu-layers", help="Layers on the GPU; -1 for all.")]
ThreadsOption = Annotated[int, typer.Option("--threads", min=0, max=512, help="Threads; 0 for one a core.")]
SequencesOption = Annotated[
    int, typer.Option("--sequences", min=0, help="Chats and forks that the context holds at once; 0 chooses.")
]
IsolateOption = Annotated[
    bool, typer.Option("--isolate", help="Run llama.cpp in a process of its own: a crash costs no chat.")
]
FastBuffersOption = Annotated[
    bool, typer.Option("--fast-buffers/--no-fast-buffers", help="Weights repacked for this CPU, where that works.")
]
SkillsDirOption = Annotated[
    list[Path] | None,
    typer.Option("--skills-dir", exists=True, file_okay=False, help="Look for skills here first; repeatable."),
]
CacheDirOption = Annotated[Path | None, typer.Option("--cache-dir", help="Where artifacts and measurements are kept.")]
DataDirOption = Annotated[Path | None, typer.Option("--data-dir", help="Where chats are kept.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but the result.")]
RepairOption = Annotated[
    int | None,
    typer.Option("--repair", min=0, help="Tokens at the seam to compute on the real chat; default: what was measured."),
]


_Group = dict[str, tuple[object, object]]

_ENGINE: _Group = {
    "model": (ModelOption, None),
    "kv_type": (KvTypeOption, KvType.F16),
    "n_ctx": (ContextOption, 0),
    "n_gpu_layers": (GpuLayersOption, -1),
    "threads": (ThreadsOption, 0),
    "isolate": (IsolateOption, False),
    "fast_buffers": (FastBuffersOption, True),
    "sequences": (SequencesOption, 0),
    "cache_dir": (CacheDirOption, None),
}
_OUTPUT: _Group = {"json": (JsonOption, False), "quiet": (QuietOption, False)}
_GROUPS: dict[object, _Group] = {EngineOptions: _ENGINE, Output: _OUTPUT}


def _group(annotation: object) -> _Group | None:
    """The options of a group: one of those above, or a dataclass whose fields are options; None for what is one option."""
    if not (isinstance(annotation, type) and is_dataclass(annotation)):
        return None
    if annotation in _GROUPS:
        return _GROUPS[annotation]
    hints = get_type_hints(annotation, include_extras=True)
    return {field.name: (hints[field.name], field.default) for field in fields(annotation)}


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer out of one that takes groups of options, such as ``EngineOptions`` and ``Output``: their options
    stand in the place of each."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, _Group]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = _group(parameter.annotation)
        if group is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = parameter.annotation, group
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option)
            for name, (option, default) in group.items()
        ]

    def call(**values: object) -> None:
        for name, (kind, group) in groups.items():
            values[name] = kind(**{option: values.pop(option) for option in group})
        command(**values)

    call.__name__, call.__doc__ = command.__name__, command.__doc__
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call
