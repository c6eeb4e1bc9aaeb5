"""The chat format of a loaded model, proven once and remembered: by template, vocabulary and the version of the proof."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import msgspec

from kvnotes_local.atomic_file import write_atomically
from kvnotes_local.chat_format.finding import FINDING_VERSION, FoundIn, find_chat_format, with_todays_texts
from kvnotes_local.chat_format.format import ChatFormat
from kvnotes_local.engine.llama.model import LlamaModel
from kvnotes_local.small_file import read_small


def chat_format_of(model: LlamaModel, fingerprint: str, cache_dir: Path | None) -> ChatFormat:
    """The format that chats with this model are put together in. ``fingerprint``: of the model file, and so of its vocabulary.
    ``cache_dir``: where formats are remembered (``formats/``); None finds it each time."""

    def tokenize(text: str, *, special: bool = False) -> list[int]:
        return model.tokenize(text, special=special)

    where = FoundIn(
        model.chat_template, tokenize, model.token_text(model.bos), model.token_text(model.eos), model.adds_bos
    )
    if cache_dir is None:
        return find_chat_format(where)
    key = json.dumps(
        [
            where.template,
            where.bos,
            where.eos,
            where.adds_bos,
            fingerprint,
            FINDING_VERSION,
            version("llama-cpp-python"),
        ]
    )
    path = cache_dir / "formats" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    try:
        return with_todays_texts(msgspec.json.decode(read_small(path), type=ChatFormat), where)
    except (OSError, ValueError, msgspec.MsgspecError):
        pass  # missing or damaged: it is only a memory of what can be found again
    found = find_chat_format(where)
    with contextlib.suppress(OSError):  # a read-only or full cache costs time, nothing else
        write_atomically(path, msgspec.json.encode(replace(found, today=None)))
    return found
