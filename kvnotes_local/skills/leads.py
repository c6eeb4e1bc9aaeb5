"""What a skill is compiled behind, so that its rows look like ones read in the middle of a chat.

A skill compiled at the very start of a text stores a false attention sink in its first token and keys that later turns
do not expect. So it is read behind the beginning of a chat in the model's own format: BOS, the default system turn and a
short exchange about something else. The rows of the lead are dropped. Reading behind two leads and taking the mean of
the rows was measured to be as good as the better of them or better, as long as tokens that are an attention sink behind one lead
only are left out of it (see docs/fidelity.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvnotes_local.chat_format.turns import TurnTokenizer


@dataclass(frozen=True)
class Lead:
    """A short chat: pairs of what the user says and what the assistant answers."""

    name: str
    exchanges: tuple[tuple[str, str], ...]


LEADS: tuple[Lead, ...] = (
    Lead(
        "notice",
        (
            (
                "Hello. Before we start I will give you a text that belongs to our work today. Please read it carefully; "
                "I will come back to it with questions later on.",
                "Of course. Send me the text whenever you like, and I will keep to what it says when you ask about it.",
            ),
        ),
    ),
    Lead(
        "bread",
        (
            (
                "My loaf came out flat again although I followed the recipe. What do you think went wrong?",
                "Most flat loaves have rested too long or in too warm a place: the dough loses its strength before it "
                "reaches the oven. Try a shorter second rise and a hotter oven, and tell me how it goes.",
            ),
            (
                "It stood on the heater for two hours, so that must be it. I will try again on Sunday.",
                "Then one hour at room temperature should be enough. Good luck with it.",
            ),
        ),
    ),
    Lead(
        "river",
        (
            (
                "We walked along the river yesterday and saw a grey bird standing in the water without moving at all.",
                "That was very likely a heron. They wait like that for fish, sometimes for half an hour.",
            ),
        ),
    ),
)
"""In order of preference: the first ``n`` are used."""

DEFAULT_N_LEADS = 2
LEAD_NUMBERS = (2, 1)
"""What the gate tries, one after the other: averaging helps most models, but not all (see docs/fidelity.md)."""


def header_tokens(turns: TurnTokenizer) -> tuple[int, ...]:
    """How a chat begins: BOS and the system turn that the model's template adds by itself."""
    return turns.beginning(None).tokens


def lead_tokens(turns: TurnTokenizer, lead: Lead) -> tuple[int, ...]:
    """The lead as this model would see it as the beginning of a chat."""
    tokens = header_tokens(turns)
    for user, assistant in lead.exchanges:
        tokens += turns.user(user).tokens + turns.assistant(assistant).tokens
    return tokens
