"""Model files that hold nothing but a vocabulary: llama.cpp's tokenizer for the markers of any chat template, in milliseconds."""

from __future__ import annotations

import ctypes
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import llama_cpp.llama_cpp as llama

from kvnotes_local.engine.llama import native

from .vocabulary import Vocabulary, byte_vocabulary

_NORMAL, _CONTROL = 1, 3

MERGED = (
    "\n",
    "\n\n",
    "\n\n\n",
    "\u2581\u2581",
    "\n\u2581",
    "\u2581\n",
    ":\u2581",
    ":\n",
    "\u25817",
    "\n7",
    "7\n",
    "7\u2581",
)
"""Texts that real vocabularies make one token of, and that form where a text meets its wrapper."""


@dataclass(frozen=True)
class MarkedVocabulary:
    """What a vocabulary is made of. ``merging``: it joins blanks, line feeds and digits with their neighbors."""

    markers: tuple[str, ...]
    bos: str
    eos: str
    adds_bos: bool = False
    merging: bool = False

    def table(self) -> Vocabulary:
        plain = byte_vocabulary()
        merged = [text for text in MERGED if self.merging]
        special = [
            marker for marker in dict.fromkeys((self.bos, self.eos, *self.markers)) if marker not in plain.tokens
        ]
        types = [
            _CONTROL if token in self.markers else kind for token, kind in zip(plain.tokens, plain.types, strict=True)
        ]
        return Vocabulary(
            (*plain.tokens, *merged, *special),
            (*plain.scores, *(-0.5 - rank / 100 for rank in range(len(merged))), *[0.0] * len(special)),
            (*types, *[_NORMAL] * len(merged), *[_CONTROL] * len(special)),
        )


class LoadedVocabulary:
    """llama.cpp's tokenizer for a marked vocabulary."""

    def __init__(self, pointer: int, made_of: MarkedVocabulary) -> None:
        weakref.finalize(self, llama.llama_model_free, pointer)
        self._vocab = llama.llama_model_get_vocab(pointer)
        self.made_of = made_of
        self.bos, self.eos, self.adds_bos = made_of.bos, made_of.eos, made_of.adds_bos

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Tokens of a text, without BOS."""
        data = text.encode()
        buffer = (llama.llama_token * (len(data) + 8))()
        n = llama.llama_tokenize(self._vocab, data, len(data), buffer, len(buffer), False, special)
        assert n >= 0
        return list(buffer[:n])

    def detokenize(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode("utf-8", "replace")

    def piece(self, token: int) -> bytes:
        """Bytes of a token, markers included."""
        buffer = ctypes.create_string_buffer(512)
        n = llama.llama_token_to_piece(self._vocab, token, buffer, 512, 0, True)
        assert n >= 0
        return buffer.raw[:n]


def load_vocabulary(made_of: MarkedVocabulary) -> LoadedVocabulary:
    """llama.cpp's tokenizer for the vocabulary."""
    native.start()
    params = llama.llama_model_default_params()
    params.vocab_only = True
    params.n_gpu_layers = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        _write(path, made_of)
        pointer = llama.llama_model_load_from_file(str(path).encode(), params)
    assert pointer, f"the vocabulary does not load: {native.recent_log(3)}"
    return LoadedVocabulary(pointer, made_of)


def _write(path: Path, made_of: MarkedVocabulary) -> None:
    table = made_of.table()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(table.tokens)
    writer.add_token_scores(table.scores)
    writer.add_token_types(table.types)
    writer.add_bos_token_id(table.id_of(made_of.bos))
    writer.add_eos_token_id(table.id_of(made_of.eos))
    writer.add_unk_token_id(table.id_of("<unk>"))
    writer.add_add_bos_token(made_of.adds_bos)
    writer.add_add_space_prefix(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
