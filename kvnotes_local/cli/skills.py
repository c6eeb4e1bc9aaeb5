"""``kvnotes skills``: the library of prompt documents and what is compiled of it."""

from __future__ import annotations

import typer

from kvnotes_local.cli.skills_compile import compile_skills
from kvnotes_local.cli.skills_lint import lint_skills
from kvnotes_local.cli.skills_list import list_skills, show_skill
from kvnotes_local.cli.skills_new import new_skill
from kvnotes_local.cli.skills_store import collect, remove_artifacts
from kvnotes_local.cli.skills_transfer import export_skill_file, import_skill_file
from kvnotes_local.cli.verify import verify


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Prompt documents and their compiled KV.", no_args_is_help=True)
    group.command("list")(list_skills)
    group.command("show")(show_skill)
    group.command("new")(new_skill)
    group.command("lint")(lint_skills)
    group.command("compile")(compile_skills)
    group.command("verify")(verify)
    group.command("remove")(remove_artifacts)
    group.command("gc")(collect)
    group.command("export")(export_skill_file)
    group.command("import")(import_skill_file)
    app.add_typer(group, name="skills")
