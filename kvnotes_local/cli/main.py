"""The commands of ``kvnotes``. They live in modules of their own and are imported when they run."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import typer

from kvnotes_local.cli.options import (
    CacheDirOption,
    ContextOption,
    DataDirOption,
    GpuLayersOption,
    KvTypeOption,
    ModelOption,
    SkillsDirOption,
    ThreadsOption,
)
from kvnotes_local.cli.output import Output, discard
from kvnotes_local.errors import Cancelled, Interrupted, KvnotesError, UsageError
from kvnotes_local.session.engine_options import EngineOptions, KvType
from kvnotes_local.stop_signals import exit_code, set_handlers

OpenScreens = Callable[[EngineOptions, tuple[Path, ...], Path | None], None]
"""Opens the terminal UI: with options for its engine, folders of skills, and the folder of data (None: the usual one)."""

app = typer.Typer(
    name="kvnotes",
    help="Precompile skills into KV cache blocks, splice them into local chats, edit what the model has read.",
    add_completion=False,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        from kvnotes_local import __version__

        typer.echo(f"kvnotes-local {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    model: ModelOption = None,
    kv_type: KvTypeOption = KvType.F16,
    n_ctx: ContextOption = 0,
    n_gpu_layers: GpuLayersOption = -1,
    threads: ThreadsOption = 0,
    skills_dir: SkillsDirOption = None,
    cache_dir: CacheDirOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Without a command the terminal UI starts; the options below are for it."""
    if context.invoked_subcommand is not None:
        return
    set_handlers(signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the event loop has its own way with it
    open_screens: OpenScreens = context.obj
    open_screens(
        EngineOptions(model, kv_type, n_ctx, n_gpu_layers, threads, cache_dir), tuple(skills_dir or ()), data_dir
    )


def run(open_screens: OpenScreens) -> None:
    """Run the command line; exits 0 done, 1 refused, failed or stopped with a message, 2 usage, 3 a gate
    did not hold, 128 + the signal after SIGTERM and SIGHUP. ``open_screens``: what is done without a command."""
    from kvnotes_local.cli import ask, bench, chats, demo, doctor, models, probe, run_episode, verify
    from kvnotes_local.cli.skills import commands as skills

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A pipe or console of another encoding gets a replacement character, not a traceback.
            stream.reconfigure(errors="replace")
    for module in (demo, ask, skills, models, chats, run_episode, verify, bench, probe, doctor):
        module.register(app)
    try:
        app(obj=open_screens)
    except UsageError as error:
        Output().note(str(error))
        sys.exit(2)
    except (Cancelled, KeyboardInterrupt, Interrupted):
        Output().note("Stopped.")
        sys.exit(exit_code())
    except KvnotesError as error:
        Output().note(str(error))
        sys.exit(exit_code())
    except BrokenPipeError:
        # The reader of our output has gone (head, a pager): nothing is left to say to it.
        discard(sys.stdout)
        sys.exit(1)
