"""Our two themes: every text colour keeps a contrast of at least 7 to its ground."""

from __future__ import annotations

from textual.theme import Theme

NIGHT = Theme(
    name="kvnotes-night",
    primary="#6cb6ff",
    secondary="#8ddb8c",
    accent="#d2a8ff",
    success="#7ee787",
    warning="#f0b72f",
    error="#ff938a",
    foreground="#e6edf3",
    background="#0b0f14",
    surface="#131a22",
    panel="#1f2937",
    dark=True,
)

DAY = Theme(
    name="kvnotes-day",
    primary="#0a3f8a",
    secondary="#0f5132",
    accent="#5a1a8b",
    success="#0b5229",
    warning="#6b3f00",
    error="#8a0f1c",
    foreground="#12181f",
    background="#ffffff",
    surface="#f3f5f8",
    panel="#dfe5ec",
    dark=False,
)
