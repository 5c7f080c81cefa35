"""What the store does, synchronously: each method is one transaction. For the store's own thread."""

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from apiserver.config import StoreSettings
from apiserver.store.owners import Owners
from apiserver.store.schema import open_database

UNFINISHED = ("queued", "in_progress")
_OVERHEAD_BYTES = 1024  # of a row, its indexes and its items' names
_EVICTED_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Stored:
    """One response as it is kept."""

    id: str
    previous: str | None
    status: str
    document: bytes
    input: bytes
    background: bool
    frames: int | None
    """How many events of its stream are kept; None: it has no stream to come back to."""

    @property
    def is_finished(self) -> bool:
        return self.status not in UNFINISHED


@dataclass(frozen=True, slots=True)
class Piece:
    """Some events of a stream as server-sent events, one after another."""

    first: int
    """The sequence number of the first."""
    count: int
    data: bytes


class Followed(NamedTuple):
    """A look at a kept stream."""

    pieces: list[tuple[int, bytes]]
    """Piece, each piece with the number of its first. The first piece may begin before what was asked for."""
    ended: bool
    """Nothing will follow."""


class Ended(Protocol):
    """A response that nobody makes any more, and the last event of its stream."""

    @property
    def status(self) -> str: ...
    @property
    def document(self) -> bytes: ...
    @property
    def frame(self) -> bytes: ...


_COLUMNS = "id, previous, status, document, input, background, frames"
_CHAIN = f"""
WITH RECURSIVE chain (link, before, place) AS (
    SELECT id, previous, 0 FROM responses WHERE id = ? AND used >= ?
    UNION ALL
    SELECT id, previous, place + 1 FROM chain JOIN responses ON id = before WHERE used >= ?
)
SELECT {_COLUMNS}, ended, owner FROM chain JOIN responses ON id = link ORDER BY place
"""
_HAVING = f"""
SELECT {_COLUMNS}, ended, owner FROM responses
WHERE id IN (SELECT response FROM items WHERE items.id IN (SELECT value FROM json_each(?))) AND used >= ?
"""


class Database:
    """One connection. Every method may raise sqlite3.Error."""

    def __init__(self, path: Path, settings: StoreSettings, lost: Callable[[bytes, int], Ended]) -> None:
        """`lost` makes, of a document and the next sequence number, what is left of a response whose maker died."""
        self._settings = settings
        self._lost = lost
        self._connection = open_database(path)
        with self._writing() as connection:
            [(own,)] = connection.execute("UPDATE pool SET owners = owners + 1 RETURNING owners").fetchall()
        self._owners = Owners(path.with_name(path.name + "-owners"), own)

    def close(self) -> None:
        self._connection.close()
        self._owners.close()

    @contextlib.contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")  # waits for its turn here, and never fails for it in the middle
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    # ---- its maker's ----

    def put(self, response: Stored, item_ids: Sequence[str], *, ended: bool) -> None:
        """A new one. Older ones go if there is no room."""
        now = time.time()
        size = len(response.document) + len(response.input) + _OVERHEAD_BYTES
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO responses (id, previous, status, ended, owner, background, frames, created, used, bytes,"
                " document, input) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    response.id,
                    response.previous,
                    response.status,
                    ended,
                    self._owners.own,
                    response.background,
                    response.frames,
                    now,
                    now,
                    size,
                    response.document,
                    response.input,
                ),
            )
            self._name_items(response.id, item_ids)
            self._make_room(keep=response.id)

    def append(self, response_id: str, piece: Piece) -> None:
        """More of its stream. It goes nowhere if the response was deleted."""
        with self._writing() as connection:
            self._append(connection, response_id, piece)

    def end(
        self,
        response_id: str,
        status: str,
        document: bytes,
        item_ids: Sequence[str],
        last: Piece | None,
    ) -> None:
        """Its maker's last word: what it became, and the last events of its stream.

        One that somebody cancelled meanwhile stays cancelled.
        """
        with self._writing() as connection:
            if last is not None:
                self._append(connection, response_id, last)
            changed = connection.execute(
                "UPDATE responses SET status = ?, document = ?, bytes = bytes + ? - length(document)"
                " WHERE id = ? AND (status IN ('queued', 'in_progress') OR status = ?)",
                (status, document, len(document), response_id, status),
            ).rowcount
            connection.execute("UPDATE responses SET ended = 1 WHERE id = ?", (response_id,))
            if changed:
                self._name_items(response_id, item_ids)
                self._make_room(keep=response_id)

    def _append(self, connection: sqlite3.Connection, response_id: str, piece: Piece) -> None:
        changed = connection.execute(
            "UPDATE responses SET frames = ?, bytes = bytes + ? WHERE id = ?",
            (piece.first + piece.count, len(piece.data), response_id),
        ).rowcount
        if changed:
            connection.execute("INSERT INTO frames VALUES (?, ?, ?)", (response_id, piece.first, piece.data))

    def _name_items(self, response_id: str, item_ids: Sequence[str]) -> None:
        """An item that a client sends again keeps its first place."""
        self._connection.executemany(
            "INSERT OR IGNORE INTO items VALUES (?, ?)", [(item_id, response_id) for item_id in item_ids]
        )

    def _make_room(self, keep: str) -> None:
        """The oldest finished ones go until everything is within the limits."""
        connection = self._connection
        self._expire()
        while True:
            (size,) = connection.execute("SELECT bytes FROM pool").fetchone()
            over = size - self._settings.max_bytes
            if over <= 0:
                return
            oldest = connection.execute(
                "SELECT id, bytes FROM responses WHERE ended AND id != ? ORDER BY used LIMIT ?",
                (keep, _EVICTED_AT_ONCE),
            ).fetchall()
            if not oldest:
                return
            for response_id, its_bytes in oldest:
                connection.execute("DELETE FROM responses WHERE id = ?", (response_id,))
                over -= its_bytes
                if over <= 0:
                    break

    def _expire(self) -> None:
        self._connection.execute("DELETE FROM responses WHERE used < ?", (self._oldest,))

    @property
    def _oldest(self) -> float:
        return time.time() - self._settings.max_age_seconds

    def expire(self) -> None:
        """Delete what is too old."""
        with self._writing():
            self._expire()

    # ---- everybody's ----

    def get(self, response_id: str) -> Stored | None:
        """One response; if its maker died, as that left it."""
        row = self._connection.execute(
            f"SELECT {_COLUMNS}, ended, owner FROM responses WHERE id = ? AND used >= ?", (response_id, self._oldest)
        ).fetchone()
        return None if row is None else self._settled(row)

    def _settled(self, row: Sequence[Any]) -> Stored | None:
        """A row as `get` reads it; None where it is gone by now."""
        *columns, ended, owner = row
        if not ended and not self._owners.is_alive(owner):
            self._bury(columns[0], owner)
            return self.get(columns[0])
        return _stored(columns)

    def _bury(self, response_id: str, owner: int) -> None:
        """End what its dead owner left; unless somebody was faster, or its owner was, before it died."""
        with self._writing() as connection:
            row = connection.execute(
                "SELECT document, frames FROM responses WHERE id = ? AND owner = ? AND NOT ended", (response_id, owner)
            ).fetchone()
            if row is None:
                return
            document, frames = row
            ended = self._lost(document, frames or 0)
            connection.execute(
                "UPDATE responses SET status = ?, document = ?, ended = 1 WHERE id = ?",
                (ended.status, ended.document, response_id),
            )
            if frames is not None:
                self._append(connection, response_id, Piece(frames, 1, ended.frame))

    def chain(self, response_id: str) -> list[Stored]:
        """The response and those before it, the oldest first. From now on all of them are in use.

        Shorter than it should be where one of them is gone: the first has a `previous` then.
        """
        found: list[Stored] = []
        for row in self._connection.execute(_CHAIN, (response_id, self._oldest, self._oldest)).fetchall():
            stored = self._settled(row)
            if stored is None:
                break
            found.append(stored)
        ids = json.dumps([stored.id for stored in found])
        with self._writing() as connection:
            connection.execute(
                "UPDATE responses SET used = ? WHERE id IN (SELECT value FROM json_each(?))", (time.time(), ids)
            )
        return found[::-1]

    def having(self, item_ids: Sequence[str]) -> list[Stored]:
        """The responses that have these items, in no order."""
        rows = self._connection.execute(_HAVING, (json.dumps(item_ids), self._oldest)).fetchall()
        return [stored for stored in map(self._settled, rows) if stored is not None]

    def cancel(self, response_id: str, change: Callable[[bytes], bytes]) -> None:
        """Mark it as cancelled, with its document changed so, if it is unfinished."""
        with self._writing() as connection:
            row = connection.execute(
                "SELECT document FROM responses WHERE id = ? AND status IN ('queued', 'in_progress')", (response_id,)
            ).fetchone()
            if row is not None:
                connection.execute(
                    "UPDATE responses SET status = 'cancelled', document = ? WHERE id = ?",
                    (change(row[0]), response_id),
                )

    def delete(self, response_id: str) -> Stored | None:
        """Returns what is gone."""
        stored = self.get(response_id)
        with self._writing() as connection:
            connection.execute("DELETE FROM responses WHERE id = ?", (response_id,))
        return stored

    def follow(self, response_id: str, first: int) -> Followed | None:
        """Its kept events from number `first` on. None: it is not there, or not any more."""
        if self.get(response_id) is None:  # which ends the stream of one whose maker died
            return None
        with self._reading() as connection:
            row = connection.execute("SELECT ended FROM responses WHERE id = ?", (response_id,)).fetchone()
            pieces = connection.execute(
                "SELECT first, data FROM frames WHERE response = ? AND first >="
                " (SELECT coalesce(max(first), 0) FROM frames WHERE response = ? AND first <= ?) ORDER BY first",
                (response_id, response_id, first),
            ).fetchall()
        return Followed(pieces, row is None or bool(row[0]))

    @contextlib.contextmanager
    def _reading(self) -> Generator[sqlite3.Connection]:
        """Several looks at one state."""
        self._connection.execute("BEGIN")
        try:
            yield self._connection
        finally:
            self._connection.execute("COMMIT")


def _stored(row: Sequence[object]) -> Stored:
    response_id, previous, status, document, its_input, background, frames = row
    assert isinstance(response_id, str)
    return Stored(response_id, previous, status, document, its_input, bool(background), frames)  # pyright: ignore[reportArgumentType]  # as the table says
