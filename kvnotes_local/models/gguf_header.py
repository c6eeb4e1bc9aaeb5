"""What the metadata of a GGUF file says about a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvnotes_local.errors import ModelError

Scalar = str | int | float | bool

SPLIT_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)

# enum llama_ftype of include/llama.h; 33 to 35 are from before llama.cpp repacked at run time.
_QUANTIZATIONS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 4: "Q4_1_F16", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S",
    27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 33: "Q4_0_4_4", 34: "Q4_0_4_8",
    35: "Q4_0_8_8", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
_GUESSED = 1024


@dataclass(frozen=True)
class SplitPart:
    """Which part of a model that was split into several files, counted from 1."""

    number: int
    count: int


@dataclass(frozen=True)
class GGUFHeader:
    """The metadata of one file. Counts and lengths are 0 where the file does not say.

    ``file_bytes``: of this file; of all parts for the header of a loaded model.
    ``metadata``: scalars and strings by full key. ``arrays``: short numeric arrays. ``array_lengths``: of every array.
    """

    path: Path
    file_bytes: int
    version: int
    n_tensors: int
    metadata: Mapping[str, Scalar] = field(repr=False)
    arrays: Mapping[str, tuple[int | float | bool, ...]] = field(repr=False)
    array_lengths: Mapping[str, int] = field(repr=False)

    def text(self, key: str) -> str:
        """A string, "" where it is missing. Raises ModelError when it is something else."""
        value = self.metadata.get(key, "")
        if not isinstance(value, str):
            raise self._wrong_type(key)
        return value

    def number(self, key: str) -> int:
        """An integer, or the largest of an array of them; 0 where it is missing. ``{arch}`` may stand in the key."""
        return max(self.numbers(key), default=0)

    def numbers(self, key: str) -> tuple[int, ...]:
        """An array of integers, or one integer as such an array; () where it is missing."""
        key = key.format(arch=self.architecture)
        value = self.arrays.get(key, self.metadata.get(key, ()))
        items = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(item, int) for item in items):
            raise self._wrong_type(key)
        return tuple(int(item) for item in items)

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    @property
    def kind(self) -> str:
        """``model``, or what else the file holds: ``adapter``, ``mmproj``, ``imatrix``, …"""
        return "mmproj" if self.architecture == "clip" else self.text("general.type") or "model"

    @property
    def name(self) -> str:
        return self.text("general.name") or self.path.stem

    @property
    def file_type(self) -> int | None:
        """``enum llama_ftype``, None where the file does not say."""
        value = self.metadata.get("general.file_type")
        return value & ~_GUESSED if isinstance(value, int) else None

    @property
    def quantization(self) -> str:
        """Such as "Q4_K_M"; "unknown" where the file does not say."""
        return _QUANTIZATIONS.get(-1 if self.file_type is None else self.file_type, "unknown")

    @property
    def context_length(self) -> int:
        """Tokens that the model was trained for."""
        return self.number("{arch}.context_length")

    @property
    def n_layer(self) -> int:
        return self.number("{arch}.block_count")

    @property
    def n_embd(self) -> int:
        return self.number("{arch}.embedding_length")

    @property
    def n_head(self) -> int:
        return self.number("{arch}.attention.head_count")

    @property
    def key_length(self) -> int:
        """Elements of one key head."""
        return self.number("{arch}.attention.key_length") or self.n_embd // max(self.n_head, 1)

    @property
    def value_length(self) -> int:
        """Elements of one value head."""
        return self.number("{arch}.attention.value_length") or self.n_embd // max(self.n_head, 1)

    @property
    def n_vocab(self) -> int:
        return self.array_lengths.get("tokenizer.ggml.tokens", 0) or self.number("{arch}.vocab_size")

    @property
    def caches_values(self) -> bool:
        """False for MLA models, whose values come out of the cached keys."""
        return self.number("{arch}.attention.key_length_mla") == 0

    @property
    def split(self) -> SplitPart | None:
        """Which part this is of a split model, None for a whole one."""
        count = self.number("split.count")
        if count > 1:
            return SplitPart(self.number("split.no") + 1, count)
        return split_of_name(self.path)

    def _wrong_type(self, key: str) -> ModelError:
        value: object = self.arrays.get(key, self.metadata.get(key))
        return ModelError(
            f"{self.path}: the metadata entry {key} is {value!r:.40}, which is not of the type it has to be. "
            "Download the model again, from another source if need be."
        )


def split_of_name(path: Path) -> SplitPart | None:
    """What the name of a file says about being one part of several (``model-00002-of-00003.gguf``)."""
    found = SPLIT_NAME.search(path.name)
    return SplitPart(int(found[1]), int(found[2])) if found and int(found[2]) > 1 else None
