"""What is known about a loaded model and its context."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvnotes_local.chat_format.format import ChatFormat
from kvnotes_local.kv.layout import GGMLType


class ModelClass(StrEnum):
    """What of a model's memory can be reused.

    SPLICE: attention keys and values per token that can be moved. PREFIX_ONLY: a recurrent state, restorable as a whole
    at the start of a chat. PREFILL: nothing.
    """

    SPLICE = "splice"
    PREFIX_ONLY = "prefix-only"
    PREFILL = "prefill"


@dataclass(frozen=True)
class ModelInfo:
    """What is known about the loaded model and its context.

    ``rotation_fingerprint``: of the measured rotation; for models whose rows cannot be moved, of the format of a whole state.
    ``on_gpu``: some of its layers are computed on a GPU.
    """

    path: Path
    name: str
    arch: str
    description: str
    fingerprint: str
    model_class: ModelClass
    class_reason: str
    rotation_residual: float | None
    rotation_fingerprint: str
    n_params: int
    n_bytes: int
    n_ctx: int
    n_ctx_train: int
    n_swa: int
    n_vocab: int
    type_k: GGMLType
    type_v: GGMLType
    kv_bytes_per_token: int
    chat_format: ChatFormat
    llama_cpp_version: str
    on_gpu: bool

    @property
    def format_notice(self) -> str | None:
        """What users should know of the chat format: why it is not that of the model's template."""
        problem = self.chat_format.problem
        if problem is None:
            return None
        return f"{self.name} gets plain labels instead of its chat template, which cannot be used: {problem}."

    @property
    def setting(self) -> str:
        """What figures were measured with, in one line."""
        return f"{self.name}, KV {self.type_k.name}, {release(self.llama_cpp_version)}"


def release(llama_cpp_version: str) -> str:
    """A release of llama.cpp as verdicts and tables name it."""
    return f"llama-cpp-python {llama_cpp_version}"
