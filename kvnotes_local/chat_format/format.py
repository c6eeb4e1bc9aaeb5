"""How a model's turns open and close; turns are put together from these pieces and history is never rendered again."""

from __future__ import annotations

from dataclasses import dataclass

REASONING_OPEN = "<think>"
REASONING_CLOSE = "</think>"
"""Around what a model thinks before it answers; the markers that nearly all models with reasoning use."""


@dataclass(frozen=True)
class Wrapper:
    """Text around the content of a turn."""

    open: str
    close: str


@dataclass(frozen=True)
class ChatFormat:
    """Pieces from which every turn of a chat is made.

    ``begin``: text before the first turn (BOS, mostly). ``system``: None where the template has no system turn.
    ``user_open_after_system``: differs from ``user.open`` where the system text lives inside the first user turn.
    ``system_mid_chat``: None where a system turn may not stand mid-chat; a skill then goes in as a user turn.
    ``default_system``: the system text that the template adds by itself. ``from_template`` is False for base models,
    which get a plain documented format. ``strips_reasoning``: the template leaves the reasoning of finished turns out.
    """

    begin: str
    system: Wrapper | None
    system_mid_chat: Wrapper | None
    user: Wrapper
    user_open_after_system: str
    assistant: Wrapper
    generation_open: str
    default_system: str | None
    from_template: bool
    problem: str | None = None
    stop_texts: tuple[str, ...] = ()
    strips_reasoning: bool = False

    @property
    def skill(self) -> Wrapper:
        """What a skill is wrapped in."""
        return self.system_mid_chat or self.user


PLAIN_FORMAT = ChatFormat(
    begin="",
    system=Wrapper("", "\n\n"),
    system_mid_chat=Wrapper("", "\n\n"),
    user=Wrapper("User:\n", "\n\n"),
    user_open_after_system="User:\n",
    assistant=Wrapper("Assistant:\n", "\n\n"),
    generation_open="Assistant:\n",
    default_system=None,
    from_template=False,
    stop_texts=("\nUser:", "\nAssistant:"),
)
"""For models without a template: labels on lines of their own, an empty line after each turn; system and skill texts stand
without a label. The model has no token that ends a turn, so a label that it writes itself ends the answer."""
