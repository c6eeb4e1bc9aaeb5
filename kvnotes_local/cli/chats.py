"""``kvnotes chats``: stored chats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvnotes_local.cli.options import CacheDirOption, DataDirOption, with_options
from kvnotes_local.cli.output import Output
from kvnotes_local.errors import UsageError
from kvnotes_local.session.places import Places
from kvnotes_local.session.quantities import human_moment
from kvnotes_local.wording import counted

if TYPE_CHECKING:
    from kvnotes_local.notebook.store.records import ChatSummary

ChatArgument = Annotated[str, typer.Argument(help="Id of a chat, or the beginning of it.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Stored chats.", no_args_is_help=True)
    group.command("list")(with_options(list_chats))
    group.command("show")(with_options(show))
    group.command("search")(with_options(search))
    group.command("fork")(with_options(fork))
    group.command("export")(export)
    group.command("remove")(with_options(remove))
    app.add_typer(group, name="chats")


def list_chats(
    data_dir: DataDirOption = None,
    *,
    output: Output,
) -> None:
    """List the chats, last used first; forks stand below the chat that they come from."""
    from kvnotes_local.notebook.store.records import as_tree

    chats = Places.usual(data=data_dir).chat_store().list()
    if chats:
        output.table(
            ["chat", "last used", "tokens", "model", "title"],
            [
                ["  " * depth + one.id, human_moment(one.updated), f"{one.n_tokens:,}", one.model_name, one.title]
                for one, depth in as_tree(chats)
            ],
            right=(2,),
        )
    else:
        output.text('There are no chats yet. Start one: kvnotes ask "Hello" --chat new')
    output.document({"chats": [_entry(one) for one in chats]})


def show(
    chat: ChatArgument,
    data_dir: DataDirOption = None,
    *,
    output: Output,
) -> None:
    """Print a chat: its segments with their tokens and freshness, and what was said."""
    from kvnotes_local.notebook.store.export import chat_document

    stored = Places.usual(data=data_dir).chat_store().load(chat)
    for number, segment in enumerate(stored.segments):
        name = f" {segment.name}" if segment.name else ""
        output.text(
            f"── {number} {segment.kind.value}{name} · {counted(segment.n_tokens, 'token')} · {segment.freshness.value}"
        )
        output.text(segment.text)
    output.document(chat_document(stored))


def search(
    words: Annotated[list[str], typer.Argument(help="Words that all have to occur.")],
    data_dir: DataDirOption = None,
    *,
    output: Output,
) -> None:
    """Find chats by their words."""
    found = Places.usual(data=data_dir).chat_store().search(" ".join(words))
    for one in found:
        output.text(f"{one.chat.id}  {one.chat.title}\n    {one.snippet}")
    if not found:
        output.text("Nothing was found.")
    output.document({"found": [{**_entry(one.chat), "segment": one.number, "snippet": one.snippet} for one in found]})


def fork(
    chat: ChatArgument,
    at: Annotated[
        int | None, typer.Option("--at", min=1, help="How many segments it takes over; default: all of them.")
    ] = None,
    data_dir: DataDirOption = None,
    *,
    output: Output,
) -> None:
    """Make a new chat that begins like another one; `chats show` numbers its segments."""
    store = Places.usual(data=data_dir).chat_store()
    found = store.find(chat)
    twin = store.fork(found.id, found.n_segments if at is None else at)
    output.text(f"{twin} begins like {found.id}. Go on with it: kvnotes ask … --chat {twin}")
    output.document({"chat_id": twin, "parent": found.id})


def export(
    chat: ChatArgument,
    form: Annotated[str, typer.Option("--format", help="md or json.")] = "md",
    to: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; default: stdout.")] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Write a chat as Markdown or JSON."""
    from kvnotes_local.atomic_file import write_atomically
    from kvnotes_local.errors import KvnotesError
    from kvnotes_local.notebook.store.export import chat_json, chat_markdown

    if form not in {"md", "json"}:
        raise UsageError(f"--format {form!r} is neither md nor json.")
    stored = Places.usual(data=data_dir).chat_store().load(chat)
    text = chat_markdown(stored) if form == "md" else chat_json(stored)
    if to is None:
        Output().text(text, end="")
        return
    if not to.parent.is_dir():
        raise UsageError(f"The folder {to.parent} does not exist.")
    try:
        write_atomically(to, text)
    except OSError as error:
        raise KvnotesError(f"{to} cannot be written: {error.strerror}. Choose another place with --output.") from error


def remove(
    chat: ChatArgument,
    data_dir: DataDirOption = None,
    cache_dir: CacheDirOption = None,
    *,
    output: Output,
) -> None:
    """Delete a chat for good, with what the model has kept of it; forks of it stay."""
    from kvnotes_local.engine.sequences.state_shelf import forget_state

    places = Places.usual(cache=cache_dir, data=data_dir)
    store = places.chat_store()
    found = store.find(chat)
    forget_state(places.cache, found.id)
    store.remove(found.id)
    output.text(f"Removed {found.id} ({found.title}).")
    output.document({"removed": found.id})


def _entry(one: ChatSummary) -> dict[str, object]:
    return {
        "chat_id": one.id,
        "title": one.title,
        "created": one.created,
        "updated": one.updated,
        "model": one.model_name,
        "parent": one.parent,
        "parent_segments": one.parent_segments,
        "n_segments": one.n_segments,
        "n_tokens": one.n_tokens,
    }
