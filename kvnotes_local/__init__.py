"""kvnotes-local: precompile prompt documents into KV cache blocks, splice them into chats, edit what was read.

The names below are imported on first use, so that ``import kvnotes_local.kv`` loads neither llama.cpp nor Textual.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvnotes_local.engine.llama_engine import LlamaEngine as LlamaEngine
    from kvnotes_local.engine.process.child_engine import ChildEngine as ChildEngine
    from kvnotes_local.notebook.notebook import Notebook as Notebook
    from kvnotes_local.skills.library import SkillLibrary as SkillLibrary

__version__ = "0.1.0"
__all__ = ["ChildEngine", "LlamaEngine", "Notebook", "SkillLibrary", "__version__"]

_HOMES = {
    "ChildEngine": "kvnotes_local.engine.process.child_engine",
    "LlamaEngine": "kvnotes_local.engine.llama_engine",
    "Notebook": "kvnotes_local.notebook.notebook",
    "SkillLibrary": "kvnotes_local.skills.library",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
