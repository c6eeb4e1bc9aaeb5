"""Model files split into several, as gguf-split does it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import gguf


def split_model(source: Path, folder: Path, n_parts: int = 3, *, altered: Collection[int] = ()) -> Path:
    """Write a model in ``n_parts`` parts below ``folder`` and give the first. One tensor of each part in ``altered`` (from 1) has
    other values than in ``source``."""
    folder.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(source)
    per_part = -(-len(reader.tensors) // n_parts)
    writer = gguf.GGUFWriter(
        folder / "model.gguf", reader.fields["general.architecture"].contents(), split_max_tensors=per_part
    )
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            is_array = field.types[0] is gguf.GGUFValueType.ARRAY
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if is_array else None)
    for index, tensor in enumerate(reader.tensors):
        part, place = divmod(index, per_part)
        data = tensor.data * 2 if part + 1 in altered and place == 0 else tensor.data
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert len(list(folder.glob("*.gguf"))) == n_parts
    return folder / f"model-00001-of-{n_parts:05d}.gguf"
