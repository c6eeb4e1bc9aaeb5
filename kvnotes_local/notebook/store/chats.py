"""Chats in SQLite. Every change is committed before anybody is told that it is done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from kvnotes_local.notebook.segment import Segment
from kvnotes_local.notebook.store.database import ChatDatabase, ChatStoreError, explained
from kvnotes_local.notebook.store.params import ChatParams
from kvnotes_local.notebook.store.records import (
    Chat,
    ChatSummary,
    Found,
    RemovedChat,
    new_chat_id,
    short_title,
    summary_from_row,
)
from kvnotes_local.notebook.store.segment_rows import COLUMNS, segment_from_row, segment_to_row
from kvnotes_local.wording import counted

_TABLES = {"chats": "id", "segments": "chat", "operations": "chat", "texts": "chat"}
"""What belongs to a chat: tables, and the column that says so. The chat itself comes first."""


class ChatChangedError(ChatStoreError):
    """Another program has written to a chat since it was read here."""


class ChatStore:
    """A database of chats in one file; several processes may use it. Raises ChatStoreError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = ChatDatabase(path)
        self._db = self._database.connection

    def close(self) -> None:
        self._db.close()

    def save(
        self,
        chat: str,
        segments: Sequence[Segment],
        what: str,
        *,
        new: tuple[str, str, ChatParams] | None = None,
        after: int | None = None,
        n_same: int = 0,
    ) -> int:
        """Make the stored segments those given; returns the number of the operation. ``what``: the operation, for the record.
        ``new``: name and fingerprint of the model and the parameters; a chat that is not stored yet begins with them.
        ``after``: number of the chat's last operation as far as the caller knows, and ``n_same``: how many of the first segments
        are those that it stored.

        Rows that stay the same are not written again. Raises ChatChangedError where another program has written since
        ``after``; nothing is stored then.
        """
        rows = [segment_to_row(segment) for segment in segments[n_same:]]
        with self._database.transaction():
            if new is not None:
                self._insert(chat, *new)
            if after is not None:
                self._check_unchanged(chat, after)
            old = self._db.execute(
                f"SELECT {COLUMNS} FROM segments WHERE chat = ? AND number >= ? ORDER BY number", (chat, n_same)
            ).fetchall()
            first = n_same + next(
                (i for i, (a, b) in enumerate(zip(old, rows, strict=False)) if a != b), min(len(old), len(rows))
            )
            if len(old) > first - n_same:
                self._db.execute("DELETE FROM segments WHERE chat = ? AND number >= ?", (chat, first))
                self._db.execute("DELETE FROM texts WHERE chat = ? AND number >= ?", (chat, first))
            marks = ", ".join("?" * len(COLUMNS.split(",")))
            self._db.executemany(
                f"INSERT INTO segments (chat, number, {COLUMNS}) VALUES (?, ?, {marks})",
                [(chat, number, *rows[number - n_same]) for number in range(first, len(segments))],
            )
            self._db.executemany(
                "INSERT INTO texts VALUES (?, ?, ?)",
                [(chat, number, segments[number].text) for number in range(first, len(segments))],
            )
            # A clock that was set back must not bring a chat behind others that were used before it.
            self._db.execute(
                "UPDATE chats SET updated = max(?, (SELECT max(updated) FROM chats) + 1e-6) WHERE id = ?",
                (time.time(), chat),
            )
            number = self._db.execute(
                "INSERT INTO operations (chat, at, what) VALUES (?, ?, ?)", (chat, time.time(), what)
            ).lastrowid
            title = next((segment.text for segment in segments if segment.kind == "user"), "")
            self._db.execute("UPDATE chats SET title = ? WHERE id = ? AND title = ''", (short_title(title), chat))
        return number or 0

    def fork(self, chat: str, n_segments: int) -> str:
        """A new chat that begins with the first ``n_segments`` segments of another; returns its id."""
        summary = self.find(chat)
        if not 1 <= n_segments <= summary.n_segments:
            raise ChatStoreError(
                f"The chat {summary.id} has {counted(summary.n_segments, 'segment')}, so it cannot be forked after {n_segments}."
            )
        twin = new_chat_id()
        with self._database.transaction():
            (params,) = self._db.execute("SELECT params FROM chats WHERE id = ?", (summary.id,)).fetchone()
            self._db.execute(
                "INSERT INTO chats (id, title, created, updated, model_name, model_fingerprint, params, parent, "
                "parent_segments) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    twin,
                    summary.title,
                    time.time(),
                    time.time(),
                    summary.model_name,
                    summary.model_fingerprint,
                    params,
                    summary.id,
                    n_segments,
                ),
            )
            self._db.execute(
                f"INSERT INTO segments (chat, number, {COLUMNS}) SELECT ?, number, {COLUMNS} FROM segments "
                "WHERE chat = ? AND number < ?",
                (twin, summary.id, n_segments),
            )
            self._db.execute(
                "INSERT INTO texts SELECT ?, number, text FROM segments WHERE chat = ? AND number < ?",
                (twin, summary.id, n_segments),
            )
            self._db.execute(
                "INSERT INTO operations (chat, at, what) VALUES (?, ?, ?)", (twin, time.time(), f"fork {summary.id}")
            )
        return twin

    def set_params(self, chat: str, params: ChatParams) -> None:
        """Keep these parameters with a chat; one that is not stored yet brings them with its first change."""
        with self._database.transaction():
            self._db.execute("UPDATE chats SET params = ? WHERE id = ?", (params.to_json(), chat))

    def load(self, chat: str) -> Chat:
        """A chat by its id or the beginning of it. Raises ChatStoreError when none or several fit."""
        with self._database.transaction():  # so that all of it is of one moment
            summary = self.find(chat)
            last = self._last_operation(summary.id)
            rows = self._db.execute(
                f"SELECT {COLUMNS} FROM segments WHERE chat = ? ORDER BY number", (summary.id,)
            ).fetchall()
            (params,) = self._db.execute("SELECT params FROM chats WHERE id = ?", (summary.id,)).fetchone()
        try:
            segments = tuple(segment_from_row(row) for row in rows)
            return Chat(summary, segments, ChatParams.from_json(params), last)
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
            raise ChatStoreError(f"The chat {summary.id} in {self.path} is damaged ({str(error)[:200]}).") from error

    def find(self, chat: str) -> ChatSummary:
        """The chat with this id, or whose id begins so."""
        if not chat or not all(char in "0123456789abcdef" for char in chat):
            raise ChatStoreError(f"{chat!r} is no chat id; `kvnotes chats list` shows them.")
        found = self._summaries("WHERE chats.id LIKE ? || '%'", (chat,))
        exact = [one for one in found if one.id == chat]
        if len(exact or found) != 1:
            how = "No chat" if not found else "More than one chat"
            raise ChatStoreError(f"{how} has an id that begins with {chat}; `kvnotes chats list` shows them.")
        return (exact or found)[0]

    def list(self, limit: int = 1000) -> tuple[ChatSummary, ...]:
        """The chats, last used first."""
        return self._summaries("", (), limit)

    def search(self, words: str, limit: int = 50) -> tuple[Found, ...]:
        """Where all the words occur, in titles or texts; the last one may be a beginning."""
        terms = [word.replace('"', "") for word in words.split()]
        terms = [term for term in terms if term]
        if not terms:
            return ()
        query = " AND ".join(f'"{term}"' for term in terms) + "*"
        with explained(self.path):
            hits = self._db.execute(
                "SELECT chat, number, snippet(texts, 2, '[', ']', '…', 12) FROM texts WHERE texts MATCH ? "
                "ORDER BY rank LIMIT ?",
                (query, limit),
            ).fetchall()
        by_id = {one.id: one for one in self._summaries("", (), 1 << 30)} if hits else {}
        return tuple(Found(by_id[chat], int(number), snippet) for chat, number, snippet in hits if chat in by_id)

    def rename(self, chat: str, title: str) -> None:
        with self._database.transaction():
            self._db.execute("UPDATE chats SET title = ? WHERE id = ?", (short_title(title), chat))

    def remove(self, chat: str) -> RemovedChat:
        """Delete a chat; forks of it stay and are chats of their own, unless it is put back. Returns all of it."""
        with self._database.transaction():
            summary = self.find(chat)
            rows = {table: self._rows(table, where, summary.id) for table, where in _TABLES.items()}
            self._db.execute("DELETE FROM texts WHERE chat = ?", (summary.id,))
            self._db.execute("DELETE FROM chats WHERE id = ?", (summary.id,))
        return RemovedChat(summary, rows)

    def last_operation(self, chat: str) -> int:
        """Number of the last change of a chat, 0 for none."""
        with explained(self.path):
            return self._last_operation(chat)

    def check_unchanged(self, chat: str, after: int) -> None:
        """Raises ChatChangedError where another program has changed a chat since its operation ``after``, or removed it."""
        with explained(self.path):
            self._check_unchanged(chat, after)

    def operations(self, chat: str) -> tuple[str, ...]:
        """What was done to a chat, in order."""
        with explained(self.path):
            rows = self._db.execute("SELECT what FROM operations WHERE chat = ? ORDER BY number", (chat,)).fetchall()
        return tuple(what for (what,) in rows)

    def _last_operation(self, chat: str) -> int:
        (number,) = self._db.execute(
            "SELECT coalesce(max(number), 0) FROM operations WHERE chat = ?", (chat,)
        ).fetchone()
        return int(number)

    def _check_unchanged(self, chat: str, after: int) -> None:
        if self._last_operation(chat) > after:
            raise ChatChangedError(
                f"The chat {chat} was changed by another program while it was open here. What was just asked for is not "
                "done, what the other program did is stored. Open the chat again and repeat it."
            )
        if not self._db.execute("SELECT 1 FROM chats WHERE id = ?", (chat,)).fetchone():
            raise ChatChangedError(
                f"The chat {chat} is gone; another program removed it. Export it or start a new one."
            )

    def put_back(self, removed: RemovedChat) -> None:
        """Store a chat that was removed again, as it was: under its id, with its forks and as a fork of its parent."""
        with self._database.transaction():
            for table, rows in removed.rows.items():
                for row in rows:
                    names = ", ".join(row)
                    marks = ", ".join("?" * len(row))
                    self._db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row.values()))

    def _rows(self, table: str, where: str, chat: str) -> tuple[dict[str, object], ...]:
        """The rows of a table that belong to a chat, by column. Operations get other numbers when they are put back."""
        order = "1" if table == "chats" else "number"
        found = self._db.execute(f"SELECT * FROM {table} WHERE {where} = ? ORDER BY {order}", (chat,))
        names = [column[0] for column in found.description]
        dropped = {"number"} if table == "operations" else set()
        return tuple(
            {name: value for name, value in zip(names, row, strict=True) if name not in dropped} for row in found
        )

    def _insert(self, chat: str, model_name: str, model_fingerprint: str, params: ChatParams) -> None:
        now = time.time()
        self._db.execute(
            "INSERT OR IGNORE INTO chats (id, title, created, updated, model_name, model_fingerprint, params) "
            "VALUES (?, '', ?, ?, ?, ?, ?)",
            (chat, now, now, model_name, model_fingerprint, params.to_json()),
        )

    def _summaries(self, where: str, values: tuple[object, ...], limit: int = 1000) -> tuple[ChatSummary, ...]:
        with explained(self.path):
            rows = self._db.execute(
                "SELECT chats.id, title, created, updated, model_name, model_fingerprint, "
                "(SELECT id FROM chats AS there WHERE there.id = chats.parent), parent_segments, "
                "count(segments.number), coalesce(sum(length(segments.tokens)), 0) / 4 "
                f"FROM chats LEFT JOIN segments ON segments.chat = chats.id {where} "
                "GROUP BY chats.id ORDER BY updated DESC LIMIT ?",
                (*values, limit),
            ).fetchall()
        return tuple(summary_from_row(row) for row in rows)
