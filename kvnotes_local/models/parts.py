"""The files of one model. llama.cpp is given the first part of a model that was split and finds the others by name.

The checks mirror those of ``llama_model_loader`` in llama.cpp's src/llama-model-loader.cpp; here they say what to do.
"""

from __future__ import annotations

from pathlib import Path

from kvnotes_local.errors import ModelError
from kvnotes_local.models.gguf_header import SPLIT_NAME, GGUFHeader, split_of_name
from kvnotes_local.models.gguf_reader import read_gguf_header


def part_paths(path: Path) -> tuple[Path, ...]:
    """Where the parts of a model lie if the name of one of them is right; the path alone where it names no part."""
    part = split_of_name(path)
    if part is None:
        return (path,)
    return tuple(
        path.with_name(SPLIT_NAME.sub(f"-{number:05d}-of-{part.count:05d}.gguf", path.name))
        for number in range(1, part.count + 1)
    )


def name_of_file(path: Path) -> str:
    """What a model is called after its file: without the ending, and without the number of the part."""
    return SPLIT_NAME.sub("", path.name).removesuffix(".gguf").removesuffix(".GGUF")


def model_parts(path: Path, header: GGUFHeader | None = None) -> tuple[Path, ...]:
    """All files of a model in order, of which ``path`` is the first or only one; ``header``: of that, where it is known.

    Raises ModelError when ``path`` is a later part, or a part is missing, unreadable, renamed or of another model.
    """
    if header is None and split_of_name(path) is None:
        return (path,)
    first = header or read_gguf_header(path)
    count = first.number("split.count")
    if count <= 1:
        return (path,)  # whole, whatever its name says
    paths = part_paths(path)
    if len(paths) != count:
        raise ModelError(
            f"{path} is the first of {count} parts of a model, but its name does not say so, and the others are found by it. "
            f"Give it back the name that it had, which ends in -00001-of-{count:05d}.gguf."
        )
    if first.number("split.no") != 0 or path != paths[0]:
        raise ModelError(
            f"{path} is not the first part of its model. Give the one that ends in -00001-of-{count:05d}.gguf."
        )
    missing = [part.name for part in paths if not part.exists()]
    if missing:
        raise ModelError(
            f"{path} is the first of {count} parts of a model, of which {', '.join(missing)} {_are(missing)} missing. "
            "Download all parts into one folder."
        )
    headers = [first, *map(read_gguf_header, paths[1:])]
    for index, part in enumerate(headers):
        if part.number("split.no") != index or any(
            part.number(key) != first.number(key) for key in ("split.count", "split.tensors.count")
        ):
            raise _of_another_model(part.path, path)
    if sum(part.n_tensors for part in headers) != first.number("split.tensors.count"):
        raise _of_another_model(paths[-1] if count == 2 else path.with_name("one of its parts"), path)
    return paths


def _of_another_model(part: Path, first: Path) -> ModelError:
    return ModelError(f"{part.name} and {first} do not belong to one model. Download all parts again, from one place.")


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
