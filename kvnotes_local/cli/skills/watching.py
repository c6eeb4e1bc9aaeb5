"""``--watch``: compile again whenever a skill changes, until Ctrl-C."""

from __future__ import annotations

import time

from kvnotes_local.cli.output import Output
from kvnotes_local.cli.skills.batch_run import BatchRun
from kvnotes_local.cli.skills.batch_wanted import Wanted
from kvnotes_local.errors import Cancelled, Interrupted, KvnotesError
from kvnotes_local.wording import counted

_LOOK_SECONDS = 1.0

Signature = dict[str, tuple[int, int]]
"""Modification time and size of every file that is watched, by path."""


def watch_skills(run: BatchRun, output: Output) -> None:
    """Look every second, and go through the batch again when something has changed. Returns on Ctrl-C.

    The model is loaded for each run and not kept: a machine that is only watched over has its memory for itself.
    """
    known = watched_files(run.wanted)
    output.note(f"Watching {counted(len(known), 'file')}; Ctrl-C ends.")
    try:
        while True:
            time.sleep(_LOOK_SECONDS)
            now = watched_files(run.wanted)
            if now == known:
                continue
            known = now
            try:
                run.go(only_news=True)
            except Cancelled:
                break
            except KvnotesError as error:
                output.note(str(error))  # a skill half-written by an editor, say: the next change may mend it
    except (KeyboardInterrupt, Interrupted):
        pass
    output.note("No longer watching.")


def watched_files(wanted: Wanted) -> Signature:
    """The SKILL.md of every skill that is wanted, and the references that go along."""
    signature: Signature = {}
    for path in wanted.files():
        try:
            status = path.stat()
        except OSError:
            continue
        signature[str(path)] = (status.st_mtime_ns, status.st_size)
    return signature
