"""The skills: whether they are compiled for the loaded model, what they say, and what lint says about them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text
from textual import events, on
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import DataTable, Static

from kvnotes_local.session.quantities import human_bytes
from kvnotes_local.session.short_path import short_path
from kvnotes_local.skills.verdicts import Outcome, Verdict
from kvnotes_local.terminal_text import safe_line, safe_text
from kvnotes_local.tui.news import ModelReady, SkillsListed
from kvnotes_local.tui.screens.base import KvnotesScreen
from kvnotes_local.tui.views import SkillRow
from kvnotes_local.tui.workbench.chat_requests import SpliceSkill
from kvnotes_local.tui.workbench.file_requests import ListSkills
from kvnotes_local.tui.workbench.skill_requests import CompileSkill
from kvnotes_local.wording import counted

NO_FINDINGS = "Lint: nothing to remark."


class SkillsScreen(KvnotesScreen):
    """Table, and beside or below it the chosen skill."""

    MODE = "skills"
    CSS_PATH = ["base.tcss", "skills.tcss"]
    BINDINGS = [
        Binding("enter,s", "splice", "Splice", id="skills.splice"),
        Binding("b", "splice_before", "Splice before …", id="skills.splice_before"),
        Binding("c", "compile", "Compile", id="skills.compile"),
        Binding("C", "compile_anew", "Compile anew", show=False, id="skills.compile_anew"),
        Binding("v", "verify", "Verify", id="skills.verify"),
        Binding("n", "new", "New", id="skills.new"),
        Binding("x", "remove", "Remove compiled", show=False, id="skills.remove"),
        Binding("e", "export", "Export", show=False, id="skills.export"),
        Binding("i", "import", "Import", show=False, id="skills.import"),
        Binding("g", "collect", "Make room", show=False, id="skills.gc"),
        Binding("ctrl+r", "refresh", "Look again", show=False, id="skills.refresh"),
        Binding("escape", "stop", "Stop", id="skills.stop"),
    ]

    def body(self) -> Iterable[Widget]:
        with Horizontal(classes="list-and-detail"):
            yield DataTable[Text](id="skills", cursor_type="row")
            with VerticalScroll(id="skill"):
                yield Static(id="skill-head")
                yield Static(id="skill-findings")
                yield Static(id="skill-text")

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        table.add_column("skill", width=16)
        table.add_column("status", width=16)
        table.add_column("tokens", width=7)
        table.add_column("size", width=9)
        table.add_column("lint", width=4)
        self._show_all()

    @on(events.ScreenResume)
    def action_refresh(self) -> None:
        self.kvnotes.submit(ListSkills(self.session.info))

    @on(SkillsListed)
    @on(ModelReady)
    def _show_all(self) -> None:
        table, fingerprint = self.query_one(DataTable), self._fingerprint
        row = table.cursor_row
        table.clear()
        for skill in self.session.skills:
            mine = [one for one in skill.compiled if one.model_fingerprint == fingerprint]
            table.add_row(
                Text(safe_line(skill.name, 16)),
                Text(skill.status(fingerprint)),
                Text(f"{mine[0].n_tokens:,}" if mine else "", justify="right"),
                Text(human_bytes(sum(one.n_bytes for one in mine)) if mine else "", justify="right"),
                Text(str(len(skill.findings)) if skill.findings else "ok", justify="right"),
            )
        if self.session.skills:
            table.move_cursor(row=min(row, len(self.session.skills) - 1))
        self._show_one()

    @on(DataTable.RowHighlighted)
    def _show_one(self) -> None:
        skill = self.chosen
        head, findings, text = (self.query_one(f"#skill-{part}", Static) for part in ("head", "findings", "text"))
        if skill is None:
            head.update(
                "No skill was found. A skill is a folder with a SKILL.md in .agents/skills, .claude/skills or --skills-dir."
            )
            findings.update("")
            text.update("")
            return
        fields = ", ".join(f"{name} = {value}" for name, value in skill.fields)
        lines = [skill.name, skill.description, short_path(skill.folder)]
        if fields:
            lines.append(f"Fields: {fields}")
        verdict = next((one.verdict for one in skill.compiled if one.verdict is not None and one.is_current), None)
        if verdict is not None:
            lines.append(verdict_text(verdict))
        others = sorted({one.model_name for one in skill.compiled if one.model_fingerprint != self._fingerprint})
        made_with = [
            ", ".join(f"{name} = {value}" for name, value in one.values)
            for one in skill.compiled
            if one.values and one.is_current and one.model_fingerprint == self._fingerprint
        ]
        if made_with:
            lines.append(f"Compiled with: {'; '.join(made_with)}")
        if others:
            lines.append(f"Also compiled for: {', '.join(others)}")
        head.update(Content("\n".join(safe_line(line) for line in lines)))
        found = [skill.problem] if skill.problem else list(skill.findings)
        findings.set_class(bool(found), "found")
        findings.update(
            Content("\n".join(["Lint:", *(f"  {safe_line(one)}" for one in found)] if found else [NO_FINDINGS]))
        )
        text.update(Content(safe_text(skill.text)))
        self.query_one("#skill").scroll_home(animate=False)

    @property
    def chosen(self) -> SkillRow | None:
        row, skills = self.query_one(DataTable).cursor_row, self.session.skills
        return skills[row] if 0 <= row < len(skills) else None

    @on(DataTable.RowSelected)
    def action_splice(self) -> None:
        if self.chosen is not None:
            self.kvnotes.try_idle(SpliceSkill(self.chosen.name))

    def action_splice_before(self) -> None:
        if self.chosen is not None:
            self.kvnotes.write_in_composer(f"/skill {self.chosen.name} before ")

    def action_compile(self, force: bool = False) -> None:
        if self.chosen is not None:
            self.kvnotes.try_idle(CompileSkill(self.chosen.name, force))

    def action_compile_anew(self) -> None:
        self.action_compile(force=True)

    def action_verify(self) -> None:
        if self.chosen is not None:
            self.kvnotes.run_line(f"/verify {self.chosen.name}")

    def action_new(self) -> None:
        self.kvnotes.write_in_composer("/skills new ")

    def action_remove(self) -> None:
        if self.chosen is not None:
            self.kvnotes.run_line(f"/skills remove {self.chosen.name}")

    def action_export(self) -> None:
        if self.chosen is not None:
            self.kvnotes.write_in_composer(f"/skills export {self.chosen.name}")

    def action_import(self) -> None:
        self.kvnotes.write_in_composer("/skills import ")

    def action_collect(self) -> None:
        self.kvnotes.run_line("/skills gc")

    def action_stop(self) -> None:
        self.kvnotes.action_stop()

    @property
    def _fingerprint(self) -> str | None:
        return self.session.info.fingerprint if self.session.info is not None else None


def verdict_text(verdict: Verdict) -> str:
    """A kept verdict in one line."""
    what = (
        f"may be spliced with {counted(verdict.repair_tokens, 'seam token')}"
        if verdict.outcome is Outcome.PASSED
        else "splicing fails, so it is read"
    )
    return (
        f"Verified with {verdict.conditions.kv_name} KV: {what}. "
        f"Mean KL {verdict.kl_mean:.4f} nats (reading again: {verdict.noise_kl_mean:.4f}), "
        f"top-1 {verdict.top1_agreement:.3f} ({verdict.noise_top1_agreement:.3f}), {verdict.n_positions} positions"
    )
