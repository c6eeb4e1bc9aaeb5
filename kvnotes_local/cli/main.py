"""``kvnotes``: the entry point. Commands live in modules of their own and are imported when they run."""

from __future__ import annotations

import io
import os
import signal
import sys

import typer

from kvnotes_local.cli.options import (
    CacheDirOption,
    ContextOption,
    DataDirOption,
    EngineOptions,
    GpuLayersOption,
    KvType,
    KvTypeOption,
    ModelOption,
    SkillsDirOption,
    ThreadsOption,
)
from kvnotes_local.cli.output import Output
from kvnotes_local.errors import Cancelled, Interrupted, KvnotesError, UsageError
from kvnotes_local.stop_signals import exit_code, interrupt, set_handlers

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
    from kvnotes_local.tui.launch import launch

    set_handlers(signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the event loop has its own way with it

    launch(
        EngineOptions(model, kv_type, n_ctx, n_gpu_layers, threads, cache_dir),
        skills_dirs=tuple(skills_dir or ()),
        data_dir=data_dir,
    )


def run() -> None:
    """Run the command line; exits 0 done, 1 refused, failed or stopped with a message, 2 usage, 3 a gate
    did not hold, 128 + the signal after SIGTERM and SIGHUP."""
    from kvnotes_local.cli import ask, bench, chats, demo, doctor, models, probe, run_episode, skills, verify

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A pipe or console of another encoding gets a replacement character, not a traceback.
            stream.reconfigure(errors="replace")
    for module in (demo, ask, skills, models, chats, run_episode, verify, bench, probe, doctor):
        module.register(app)
    try:
        app()
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    set_handlers(interrupt)
    run()
