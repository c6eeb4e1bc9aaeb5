CREATE TABLE chats (
    id TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    model_name TEXT NOT NULL,
    model_fingerprint TEXT NOT NULL,
    params TEXT NOT NULL,
    parent TEXT REFERENCES chats (id) ON DELETE SET NULL,
    parent_segments INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE segments (
    chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    text TEXT NOT NULL,
    value TEXT NOT NULL,
    reasoning TEXT NOT NULL,
    reasoning_start INTEGER NOT NULL,
    reasoning_stop INTEGER NOT NULL,
    tokens BLOB NOT NULL,
    content_start INTEGER NOT NULL,
    content_stop INTEGER NOT NULL,
    fields TEXT NOT NULL,
    runs TEXT NOT NULL,
    artifact TEXT,
    seam INTEGER NOT NULL,
    stopped INTEGER NOT NULL,
    proof TEXT,
    PRIMARY KEY (chat, number)
) WITHOUT ROWID;

CREATE TABLE operations (
    number INTEGER PRIMARY KEY,
    chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    at REAL NOT NULL,
    what TEXT NOT NULL
);

CREATE INDEX operations_of_chat ON operations (chat, number);
CREATE INDEX chats_by_time ON chats (updated);

CREATE VIRTUAL TABLE texts USING fts5 (chat UNINDEXED, number UNINDEXED, text, tokenize = 'unicode61 remove_diacritics 2');
