"""The first line of each screen: where one is, and where one can go with a key or the mouse."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

SCREENS = {
    "chat": ("f2", "Chat"),
    "skills": ("f3", "Skills"),
    "chats": ("f4", "Chats"),
    "models": ("f5", "Models"),
    "bench": ("f6", "Bench"),
    "settings": ("f7", "Settings"),
    "log": ("f8", "Log"),
    "help": ("f1", "Help"),
}


class NavBar(Static):
    """``here``: the screen that this one is."""

    def __init__(self, here: str) -> None:
        super().__init__(id="nav")
        self._here = here

    def render(self) -> Content:
        parts: list[Content] = []
        for mode, (key, title) in SCREENS.items():
            label = f"{key.upper()} {title}"
            style = "bold reverse" if mode == self._here else "$text-muted"
            parts.append(Content(f" {label} ").stylize(style).stylize(f"@click=app.go('{mode}')"))
        return Content("").join(parts)
