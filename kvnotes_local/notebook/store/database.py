"""The file that chats are stored in: opening it safely, its schema, transactions, and its errors in words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from kvnotes_local.errors import KvnotesError
from kvnotes_local.paths import ensure_private


class ChatStoreError(KvnotesError):
    """The database of chats cannot be opened, read or written."""


class ChatDatabase:
    """A connection with the present schema; several processes may have one. Raises ChatStoreError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        ensure_private(path.parent)
        with explained(path):
            self.connection = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
            path.chmod(0o600)
            self.connection.execute("PRAGMA journal_mode = WAL")
            self.connection.execute("PRAGMA synchronous = FULL")
            self.connection.execute("PRAGMA foreign_keys = ON")
            self._refuse_code()
            self._upgrade()

    def _refuse_code(self) -> None:
        """A database of ours holds tables only. Views and triggers would run as code: without end, or on what is stored."""
        self.connection.execute("PRAGMA trusted_schema = OFF")
        found = self.connection.execute("SELECT type FROM sqlite_schema WHERE type IN ('view', 'trigger')").fetchone()
        if found is not None:
            raise ChatStoreError(
                f"{self.path} is no database of chats: it holds a {found[0]}. Move it away to start anew."
            )

    def _upgrade(self) -> None:
        """Apply the numbered schema files that this database has not seen."""
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        steps = sorted(
            (
                entry
                for entry in files("kvnotes_local.notebook.store").joinpath("schema").iterdir()
                if entry.name.endswith(".sql")
            ),
            key=lambda entry: entry.name,
        )
        if version > len(steps):
            raise ChatStoreError(f"{self.path} was written by a newer kvnotes (schema {version}); use that one.")
        for number, step in enumerate(steps, 1):
            if number <= version:
                continue
            with self.transaction():
                # Another program may have been faster.
                if self.connection.execute("PRAGMA user_version").fetchone() != (number - 1,):
                    continue
                for statement in step.read_text("utf-8").split(";\n"):
                    self.connection.execute(statement)
                self.connection.execute(f"PRAGMA user_version = {number}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing; of one moment."""
        with explained(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # a full disk may have ended it already
                    self.connection.execute("ROLLBACK")
                raise


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """SQLite's errors as ChatStoreError, with what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        hint = "Free some disk space." if "full" in str(error) else "Check the disk and who else uses the file."
        raise ChatStoreError(f"The chats in {path} cannot be used: {error}. {hint}") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise ChatStoreError(
            f"{path} is damaged or no database of chats: {error}. Move it away to start anew."
        ) from error
