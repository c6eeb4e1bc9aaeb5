"""``kvnotes skills``: the library of prompt documents and what is compiled of it."""

from __future__ import annotations

import typer

from kvnotes_local.cli.options import with_options
from kvnotes_local.cli.skills.compile import compile_skills
from kvnotes_local.cli.skills.lint import lint_skills
from kvnotes_local.cli.skills.list import list_skills, show_skill
from kvnotes_local.cli.skills.new import new_skill
from kvnotes_local.cli.skills.store import collect, remove_artifacts
from kvnotes_local.cli.skills.transfer import export_skill_file, import_skill_file
from kvnotes_local.cli.verify import verify


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Prompt documents and their compiled KV.", no_args_is_help=True)
    group.command("list")(with_options(list_skills))
    group.command("show")(with_options(show_skill))
    group.command("new")(with_options(new_skill))
    group.command("lint")(with_options(lint_skills))
    group.command("compile")(with_options(compile_skills))
    group.command("verify")(with_options(verify))
    group.command("remove")(with_options(remove_artifacts))
    group.command("gc")(with_options(collect))
    group.command("export")(with_options(export_skill_file))
    group.command("import")(with_options(import_skill_file))
    app.add_typer(group, name="skills")
