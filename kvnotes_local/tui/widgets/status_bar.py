"""Two lines at the foot of the chat: the proof of the last answer, and the model with its context."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from kvnotes_local.contract.model_info import ModelClass
from kvnotes_local.notebook.proof import Proof
from kvnotes_local.session.quantities import human_ms
from kvnotes_local.terminal_text import safe_line
from kvnotes_local.tui.state import SessionState

_BADGES = {
    ModelClass.SPLICE: "$text-success",
    ModelClass.PREFIX_ONLY: "$text-warning",
    ModelClass.PREFILL: "$text-error",
}


class StatusBar(Static):
    """Proof, model, class, KV type, context used, first token, speed."""

    session: reactive[SessionState] = reactive(SessionState())

    def render(self) -> Content:
        return Content("\n").join([proof_line(self.session.proof), self._model_line()])

    def _model_line(self) -> Content:
        session = self.session
        info = session.info
        if info is None:
            return Content("No model is loaded.")
        used = session.chat.n_tokens if session.chat is not None else 0
        kv = info.type_k.name if info.type_k == info.type_v else f"{info.type_k.name}/{info.type_v.name}"
        wide = self.size.width >= 100
        facts = [
            Content(safe_line(info.name, 32 if wide else 13)),
            Content.styled(f"[{info.model_class.value}]", _BADGES[info.model_class]),
            Content(f"KV {kv}"),
            Content(f"{'context ' if wide else ''}{used:,}/{info.n_ctx:,}"),
        ]
        proof = session.proof
        if proof is not None:
            facts.append(Content(f"{'first token' if wide else 'first'} {human_ms(proof.change_ms + proof.ttft_ms)}"))
            if proof.tokens_per_second:
                facts.append(Content(f"{proof.tokens_per_second:.0f} tokens/s"))
        return Content(" · ").join(facts)


def proof_line(proof: Proof | None) -> Content:
    """Where an answer's tokens came from, and what reading everything would have taken."""
    if proof is None:
        return Content.styled("No answer yet: its proof will stand here.", "$text-muted")
    parts = [f"{proof.spliced:,} spliced", f"{proof.repaired:,} repaired", f"{proof.prefilled:,} prefilled"]
    if proof.moved:
        parts.append(f"{proof.moved:,} moved")
    if proof.recompute_ms is not None:
        parts.append(f"full recompute ≈ {human_ms(proof.recompute_ms)}")
    return Content(" · ".join(parts))
