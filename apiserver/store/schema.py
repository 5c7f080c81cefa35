"""The store's tables, and how its file is opened."""

import contextlib
import os
import sqlite3
from pathlib import Path

_VERSION = 1
_BUSY_SECONDS = 10.0
_SCHEMA = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY,
    previous TEXT,
    status TEXT NOT NULL,
    ended INTEGER NOT NULL,        -- its maker writes nothing more
    owner INTEGER NOT NULL,        -- who makes it
    background INTEGER NOT NULL,
    frames INTEGER,                -- how many events are kept; NULL: none, for it has no stream to come back to
    created REAL NOT NULL,
    used REAL NOT NULL,            -- when it was made, or continued
    bytes INTEGER NOT NULL,
    document BLOB NOT NULL,        -- the response object, JSON
    input BLOB NOT NULL            -- its own input items, a JSON list
);
CREATE INDEX responses_used ON responses (used);
CREATE TABLE frames (
    response TEXT NOT NULL REFERENCES responses ON DELETE CASCADE,
    first INTEGER NOT NULL,        -- sequence number of the first event in data
    data BLOB NOT NULL,            -- server-sent events
    PRIMARY KEY (response, first)
) WITHOUT ROWID;
CREATE TABLE items (
    id TEXT PRIMARY KEY,
    response TEXT NOT NULL REFERENCES responses ON DELETE CASCADE
) WITHOUT ROWID;
CREATE INDEX items_response ON items (response);
CREATE TABLE pool (owners INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO pool VALUES (0, 0);
CREATE TRIGGER more AFTER INSERT ON responses BEGIN UPDATE pool SET bytes = bytes + new.bytes; END;
CREATE TRIGGER less AFTER DELETE ON responses BEGIN UPDATE pool SET bytes = bytes - old.bytes; END;
CREATE TRIGGER other AFTER UPDATE OF bytes ON responses
    BEGIN UPDATE pool SET bytes = bytes + new.bytes - old.bytes; END;
"""


def open_database(path: Path) -> sqlite3.Connection:
    """A connection for one thread of one process, never to be carried over a fork. Raises OSError or sqlite3.Error.

    What is made new is its owner's alone (0600); SQLite gives the files beside it the same mode.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    with contextlib.ExitStack() as stack:
        stack.callback(connection.close)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # what a crash of the machine may cost is the last moment
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        connection.execute("PRAGMA journal_size_limit = 4194304")
        _make_tables(connection)
        stack.pop_all()
    return connection


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                raise sqlite3.DatabaseError("it is a database of something else")
            for statement in _statements():
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        elif version != _VERSION:
            raise sqlite3.DatabaseError(f"its version is {version}, and this server's is {_VERSION}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _statements() -> list[str]:
    """One by one: `executescript` would commit first."""
    statements: list[str] = []
    text = ""
    for line in _SCHEMA.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            statements.append(text)
            text = ""
    return statements
