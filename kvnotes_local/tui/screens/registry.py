"""The screens by the names of their modes. All but the first one are imported when they are shown."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvnotes_local.tui.screens.base import KvnotesScreen

_CLASSES = {
    "chat": "ChatScreen",
    "skills": "SkillsScreen",
    "chats": "ChatsScreen",
    "models": "ModelsScreen",
    "bench": "BenchScreen",
    "settings": "SettingsScreen",
    "log": "LogScreen",
    "help": "HelpScreen",
}


def screen_class(mode: str) -> type[KvnotesScreen]:
    """The class of a mode's screen, whose module is named like the mode."""
    found: type[KvnotesScreen] = getattr(import_module(f"kvnotes_local.tui.screens.{mode}"), _CLASSES[mode])
    return found


def screen_makers() -> dict[str, Callable[[], KvnotesScreen]]:
    """What makes each mode's screen."""
    return {mode: lambda mode=mode: screen_class(mode)() for mode in _CLASSES}  # type: ignore[misc]


def screen_classes() -> list[type[KvnotesScreen]]:
    """All of them."""
    return [screen_class(mode) for mode in _CLASSES]
