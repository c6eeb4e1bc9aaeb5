"""The chat format of a loaded model, proven once and remembered: by template, vocabulary and the version of the proof."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from kvnotes_local.chat_format.finding import FINDING_VERSION, FoundIn, find_chat_format, with_todays_texts
from kvnotes_local.chat_format.format import ChatFormat
from kvnotes_local.engine.llama.model import LlamaModel
from kvnotes_local.records import CachedRecord


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
    name = f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    record = CachedRecord(cache_dir / "formats" / name, ChatFormat)
    known = record.load()
    if known is not None:
        with contextlib.suppress(ValueError):  # damaged in what it says of dates
            return with_todays_texts(known, where)
    found = find_chat_format(where)
    record.save(replace(found, today=None))
    return found
