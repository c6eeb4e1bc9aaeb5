"""``kvnotes skills lint``: what makes a skill read worse once it is spliced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvnotes_local.cli.options import CacheDirOption, ContextOption, ModelOption, SkillsDirOption, ThreadsOption
from kvnotes_local.cli.output import Output
from kvnotes_local.errors import KvnotesError
from kvnotes_local.session.engine_options import EngineOptions, KvType
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from kvnotes_local.skills.skill import Skill


def lint_skills(
    names: Annotated[list[str] | None, typer.Argument(help="Skills to look at; default: all.")] = None,
    model: ModelOption = None,
    n_ctx: ContextOption = 0,
    threads: ThreadsOption = 0,
    skills_dir: SkillsDirOption = None,
    cache_dir: CacheDirOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there is any remark.")] = False,
    *,
    output: Output,
) -> None:
    """Say what makes skills splice badly, by line. With --model lengths are counted and compared with what was measured."""
    from kvnotes_local.skills.library import SkillLibrary
    from kvnotes_local.skills.lint import ModelLimits, lint, lint_library
    from kvnotes_local.skills.lint_finding import Code, Finding

    library = SkillLibrary.default(skills_dir or [])
    skills: list[Skill] = []
    broken: list[Finding] = []
    if not names:
        broken += [Finding(1, Code.BROKEN, one.message, one.path.parent.name) for one in library.problems]
    for name in names or [skill.name for skill in library.skills]:
        try:
            skills.append(library.get(name))
        except KvnotesError as error:
            if names and len(names) == 1:
                raise
            broken.append(Finding(1, Code.BROKEN, str(error), name))
    lengths: dict[str, int] = {}
    limits = ModelLimits()
    if model is not None:
        from kvnotes_local.cli.session import open_session
        from kvnotes_local.skills.compiler import default_repair
        from kvnotes_local.skills.speeds import SpeedMemory

        options = EngineOptions(model, KvType.F16, n_ctx, -1, threads, cache_dir)
        with open_session(options, output, skills_dirs=skills_dir or []) as session:
            info = session.engine.info
            speed = SpeedMemory(session.places.cache).get(info.fingerprint)
            if speed is None:
                output.note(
                    f"Not measured yet: from which length on splicing pays off on {info.name}. Compile a skill first."
                )
            limits = ModelLimits(info.n_ctx, info.n_swa, speed.pays_off_from(default_repair(info)) if speed else None)
            for skill in skills:
                if skill.body.strip():
                    lengths[skill.name] = len(session.compiler.turn(skill).tokens)
    findings = [
        *broken,
        *(finding for skill in skills for finding in lint(skill, n_tokens=lengths.get(skill.name), limits=limits)),
        *lint_library(skills, [skill.name for skill in library.skills]),
    ]
    for finding in findings:
        place = f"{finding.skill}:{finding.line}" if finding.line else finding.skill or "several skills"
        output.text(f"{place}  {finding.code.value}  {finding.message}")
    n = len(findings)
    output.text(f"{counted(len(skills), 'skill')}, {counted(n, 'remark') if n else 'no remarks'}.")
    output.document({"findings": findings, "n_skills": len(skills)})
    if broken:
        raise KvnotesError(f"{counted(len(broken), 'skill')} cannot be read: see above.")
    if strict and findings:
        raise KvnotesError(f"{counted(n, 'remark')} on the skills: see above.")
