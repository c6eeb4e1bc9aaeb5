"""Write a GGUF file with random weights for an architecture that is known only by its metadata.

llama.cpp itself says which tensors an architecture has: a file with metadata alone is given to
``llama_model_init_from_user``, which calls back once a tensor with its name and shape. The tensors are then filled
here, and written together with the metadata into an ordinary file.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from .vocabulary import CHATML_TEMPLATE, byte_vocabulary

MetaValue = str | bool | int | float | Sequence[int] | Sequence[float] | Sequence[bool]

# Tensors that most architectures merely allow: biases, quantization scales, frequency factors, extra heads.
_OPTIONAL = re.compile(r"\.bias$|scale|rope_freqs|rope_factors|^cls|^dense|nextn|\.lora_[ab]$")


class ZooBuildError(Exception):
    """llama.cpp does not accept the metadata or the finished file."""


class _GGUFInitParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


class _GGMLTensorHead(ctypes.Structure):
    """The first fields of ``struct ggml_tensor`` (ggml/include/ggml.h)."""

    _fields_ = (("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4))


def _ggml_base() -> ctypes.CDLL:
    directory = Path(llama.__file__).parent / "lib"
    for pattern in ("libggml-base.so", "libggml-base.dylib", "ggml-base.dll", "libggml-base.dll"):
        if (directory / pattern).exists():
            library = ctypes.CDLL(str(directory / pattern))
            break
    else:
        raise ZooBuildError(f"no ggml-base library in {directory}")
    library.gguf_init_from_file.restype = ctypes.c_void_p
    library.gguf_init_from_file.argtypes = [ctypes.c_char_p, _GGUFInitParams]
    library.gguf_free.argtypes = [ctypes.c_void_p]
    library.ggml_get_name.restype = ctypes.c_char_p
    library.ggml_get_name.argtypes = [ctypes.c_void_p]
    return library


def build_model(
    path: Path,
    arch: str,
    keys: Mapping[str, MetaValue],
    keep: str,
    tensors: Mapping[str, NDArray[np.float32]],
    seed: int,
) -> None:
    """Write a loadable GGUF file of architecture ``arch`` to ``path``, by way of a temporary file beside it.

    ``keys``: metadata; names that start with a dot belong to the architecture (``.block_count``). ``keep``: regular
    expression for the optional tensors to have. ``tensors``: contents that matter, by tensor name.
    Raises ZooBuildError if llama.cpp refuses the metadata.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        bare = Path(scratch) / "metadata.gguf"
        _write(bare, arch, keys, {})
        shapes = _tensor_shapes(bare)
        kept = [name for name in shapes if not _OPTIONAL.search(name) or (keep and re.search(keep, name))]
        unknown = set(tensors) - set(kept)
        if unknown:
            raise ZooBuildError(f"{path.name}: llama.cpp asks for no tensor named {sorted(unknown)}")
        rng = np.random.default_rng(seed)
        weights = {name: tensors.get(name, _random(name, shapes[name], rng)) for name in kept}
        full = Path(scratch) / path.name
        _write(full, arch, keys, weights)
        full.replace(path)


def _write(path: Path, arch: str, keys: Mapping[str, MetaValue], weights: Mapping[str, NDArray[np.float32]]) -> None:
    vocabulary = byte_vocabulary()
    writer = gguf.GGUFWriter(path, arch)
    for key, value in keys.items():
        _add(writer, arch + key if key.startswith(".") else key, value)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_scores(vocabulary.scores)
    writer.add_token_types(vocabulary.types)
    writer.add_bos_token_id(vocabulary.id_of("<s>"))
    writer.add_eos_token_id(vocabulary.id_of("</s>"))
    writer.add_eot_token_id(vocabulary.id_of("<|im_end|>"))
    writer.add_unk_token_id(vocabulary.id_of("<unk>"))
    writer.add_pad_token_id(vocabulary.id_of("<|pad|>"))
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHATML_TEMPLATE)
    for name, data in weights.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: MetaValue) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


def _tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes in ggml order (innermost first) of the tensors that llama.cpp creates for the metadata in ``path``."""
    ggml = _ggml_base()
    llama.llama_backend_init()
    shapes: dict[str, tuple[int, ...]] = {}

    @llama.llama_model_set_tensor_data_t
    def record(tensor: int, _userdata: int | None) -> None:
        head = _GGMLTensorHead.from_address(tensor)
        name = ggml.ggml_get_name(tensor).decode()
        shapes[name] = tuple(int(n) for n in head.ne)

    metadata = ggml.gguf_init_from_file(os.fsencode(path), _GGUFInitParams(no_alloc=True, ctx=None))
    if not metadata:
        raise ZooBuildError(f"{path}: not a GGUF file")
    try:
        params = llama.llama_model_default_params()
        params.n_gpu_layers = 0
        model = llama.llama_model_init_from_user(metadata, record, None, params)
        if not model:
            raise ZooBuildError(f"{path}: llama.cpp refuses the metadata (see its log)")
        llama.llama_model_free(model)
    finally:
        ggml.gguf_free(metadata)
    return shapes


def _random(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
    """Values of the scale that trained weights have, so that activations neither vanish nor explode."""
    dims = tuple(reversed(shape))
    while len(dims) > 1 and dims[0] == 1:
        dims = dims[1:]
    normal = rng.standard_normal(dims)
    leaf = name.removesuffix(".weight").rsplit(".", 1)[-1]
    if name.endswith(".bias"):
        values = 0.1 * normal
    elif "norm" in leaf:
        values = 1.0 + 0.1 * normal
    elif leaf == "ssm_a":
        values = -np.abs(normal) - 0.1
    elif leaf == "ssm_d":
        values = 1.0 + 0.1 * normal
    elif leaf.startswith("rope_"):
        values = 1.0 + np.abs(normal)
    elif leaf in {"token_embd", "position_embd"}:
        values = normal
    else:
        values = normal / np.sqrt(shape[0])
    return values.astype(np.float32)
