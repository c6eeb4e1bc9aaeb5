"""What can be done without a model: listing skills and models, reading logs, estimating memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvnotes_local.contract.model_info import ModelInfo
from kvnotes_local.contract.params import EngineParams
from kvnotes_local.errors import KvnotesError, SkillError
from kvnotes_local.terminal_text import safe_line
from kvnotes_local.tui.last_session import LastSession
from kvnotes_local.tui.news import LogRead, MemoryEstimated, ModelsListed, SkillsListed
from kvnotes_local.tui.views import CompiledFor, ModelRow, SkillRow
from kvnotes_local.tui.workbench.desk import FileDesk, FileRequest

if TYPE_CHECKING:
    from kvnotes_local.skills.lint import ModelLimits
    from kvnotes_local.skills.skill import Skill
    from kvnotes_local.skills.status import ArtifactStatus
    from kvnotes_local.skills.verdicts import VerdictStore


@dataclass(frozen=True)
class ListSkills(FileRequest):
    """List the skills with their artifacts, what lint says, and what was measured. ``info``: of the loaded model."""

    info: ModelInfo | None = None

    @property
    def what(self) -> str:
        return "Listing the skills"

    def run(self, desk: FileDesk) -> None:
        from kvnotes_local.skills.lint import ModelLimits

        limits = ModelLimits(self.info.n_ctx, self.info.n_swa) if self.info is not None else ModelLimits()
        library = desk.places.library()
        states = desk.places.artifact_states(library)
        rows = []
        for summary in library.skills:
            try:
                skill = library.get(summary.name)
            except SkillError as error:
                rows.append(SkillRow(summary.name, summary.description, summary.folder, "", problem=str(error)))
                continue
            rows.append(self._row(skill, states.get(skill.name, ()), desk.places.verdict_store(), limits))
        desk.tell(SkillsListed(tuple(rows), tuple(problem.message for problem in library.problems)))

    def _row(
        self, skill: Skill, states: Sequence[ArtifactStatus], verdicts: VerdictStore, limits: ModelLimits
    ) -> SkillRow:
        from kvnotes_local.skills.lint import lint
        from kvnotes_local.skills.status import ArtifactState
        from kvnotes_local.skills.verdicts import conditions_of

        compiled = tuple(
            CompiledFor(
                meta.model_fingerprint,
                meta.model_name,
                meta.n_tokens,
                one.stored.n_bytes,
                one.is_current,
                one.state is ArtifactState.UNCHECKED,
                one.values,
                verdicts.find(conditions_of(self.info, meta.key)) if self.info is not None else None,
            )
            for one in states
            if (meta := one.stored.meta) is not None and meta.skill == skill.name
        )
        findings = tuple(
            f"line {finding.line}: {finding.message}" if finding.line else finding.message
            for finding in lint(skill, limits=limits)
        )
        fields = tuple((name, default or "") for name, default in skill.fields.items())
        return SkillRow(skill.name, skill.description, skill.folder, skill.text(), fields, findings, compiled)


@dataclass(frozen=True)
class ListModels(FileRequest):
    """Look for models in the usual places."""

    @property
    def what(self) -> str:
        return "Looking for models"

    def run(self, desk: FileDesk) -> None:
        from kvnotes_local.models.scan import scan_models

        places = desk.places
        scan = scan_models(places.models, env={}, home=places.data) if places.only_given else scan_models(places.models)
        rows = []
        for found in scan.models:
            header = found.header
            rows.append(
                ModelRow(
                    found.path,
                    found.name,
                    found.source.value,
                    found.n_bytes,
                    header.architecture if header else "",
                    header.quantization if header else "",
                    header.context_length if header else 0,
                    found.error or "",
                )
            )
        desk.tell(ModelsListed(tuple(rows), tuple(f"{one.path}: {one.reason}" for one in scan.unreadable)))


@dataclass(frozen=True)
class ReadLog(FileRequest):
    """The last lines of a log; none where there is no such file."""

    path: Path
    n_lines: int = 400

    @property
    def what(self) -> str:
        return "Reading the log"

    def run(self, desk: FileDesk) -> None:
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 200 * self.n_lines))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except FileNotFoundError:
            lines = []
        except OSError as error:
            raise KvnotesError(f"{self.path} cannot be read: {error.strerror}. Check its rights.") from error
        desk.tell(LogRead(self.path, tuple(safe_line(line) for line in lines[-self.n_lines :])))


@dataclass(frozen=True)
class EstimateMemory(FileRequest):
    """What a model with these parameters would take."""

    path: Path
    params: EngineParams

    @property
    def what(self) -> str:
        return "Estimating memory"

    def run(self, desk: FileDesk) -> None:
        from kvnotes_local.contract.params import DEFAULT_N_CTX
        from kvnotes_local.engine.process.build_facts import has_gpu
        from kvnotes_local.models.gguf_reader import read_gguf_header
        from kvnotes_local.models.memory import check_memory

        params = self.params
        try:
            header = read_gguf_header(self.path)
            n_ctx = params.n_ctx or min(DEFAULT_N_CTX, header.context_length or DEFAULT_N_CTX)
            on_gpu = params.n_gpu_layers != 0 and has_gpu()
            estimate = check_memory(header, n_ctx, params.type_k, params.type_v, params.n_gpu_layers, has_gpu=on_gpu)
        except KvnotesError as error:
            desk.tell(MemoryEstimated(self.path, None, str(error)))
            return
        desk.tell(MemoryEstimated(self.path, estimate))


@dataclass(frozen=True)
class SaveSession(FileRequest):
    """Remember what is on the desk for the next start."""

    session: LastSession

    @property
    def what(self) -> str:
        return "Remembering where you are"

    def run(self, desk: FileDesk) -> None:
        try:
            self.session.save(desk.places.data)
        except OSError as error:
            raise KvnotesError(
                f"{desk.places.data} cannot be written: {error.strerror}. Free some disk space."
            ) from error
