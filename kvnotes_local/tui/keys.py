"""All keys that can be bound otherwise, by the names of what they do."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from textual.binding import Binding
from textual.dom import DOMNode

from kvnotes_local.tui.host import Host
from kvnotes_local.tui.screens.registry import screen_classes
from kvnotes_local.tui.widgets.composer import ComposerText
from kvnotes_local.tui.widgets.notebook_panel import FieldsTable, SegmentList
from kvnotes_local.tui.widgets.transcript import Transcript
from kvnotes_local.tui.widgets.turn import Turn

_WIDGETS: tuple[type[DOMNode], ...] = (ComposerText, Transcript, Turn, SegmentList, FieldsTable)


@dataclass(frozen=True)
class BoundKey:
    """``id``: the name in the settings. ``keys``: as bound now, separated by commas. ``usual``: without settings."""

    id: str
    what: str
    keys: str
    usual: str

    @property
    def shown(self) -> str:
        """As people read it: ``Ctrl+N, F2``."""
        return ", ".join(
            part.strip().replace("ctrl+", "Ctrl+").replace("alt+", "Alt+") for part in self.keys.split(",")
        )


def bindings(app: type[Host]) -> Iterator[Binding]:
    """Bindings that have a name, of the app, its screens and their widgets."""
    nodes: list[type[DOMNode]] = [app, *screen_classes(), *_WIDGETS]
    for node in nodes:
        for binding in node.BINDINGS:
            if isinstance(binding, Binding) and binding.id is not None:
                yield binding


def bound_keys(app: Host) -> list[BoundKey]:
    """Every key with a name, as it is bound now."""
    return [
        BoundKey(binding.id, binding.description, app.settings.keys.get(binding.id, binding.key), binding.key)
        for binding in bindings(type(app))
        if binding.id is not None
    ]


def unknown_keys(app: type[Host], names: Collection[str]) -> list[str]:
    """Names in the settings that name nothing."""
    known = {binding.id for binding in bindings(app)}
    return [name for name in names if name not in known]
