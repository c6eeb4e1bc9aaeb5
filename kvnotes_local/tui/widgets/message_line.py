"""One line that says what is being done, and otherwise what happened last."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from kvnotes_local.terminal_text import safe_line
from kvnotes_local.tui.state import Said, SessionState, Work


class MessageLine(Static):
    """Shows work under way, notices and failures; failures are also told by their first word."""

    session: reactive[SessionState] = reactive(SessionState(), layout=True)

    def watch_session(self, session: SessionState) -> None:
        self.display = bool(session.work or session.said.text)
        self.set_class(session.work is None and session.said.failed, "failed")

    def render(self) -> Content:
        if self.session.work is not None:
            return work_line(self.session.work, self.session.said)
        return Content(safe_line(self.session.said.text))


def work_line(work: Work, said: Said) -> Content:
    """What is being done and how far it is."""
    line = safe_line(f"{work.what}: {work.step}" if work.step else work.what)
    if work.total:
        line += f": {work.done:,}{work.unit}" if work.unit == "%" else f": {work.done:,} of {work.total:,} {work.unit}"
        filled = round(20 * min(1.0, work.done / work.total))
        line += f" {'━' * filled}{'─' * (20 - filled)}"
    else:
        line += " …"
    line += "  (Esc stops)"
    if said.text:
        line += f"  {safe_line(said.text)}"
    return Content(line)
