"""The Responses store: one SQLite file for the pool, which any API server writes and reads.

Each API server opens it after the fork, at its first use, on one thread of its own: commits and waits for the others'
turns would stall a loop. What was written is seen by all, and survives the death of whoever wrote it.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from apiserver.config import StoreSettings
from apiserver.store.database import Database, Ended, Followed, Piece, Stored
from apiserver.store.schema import open_database

__all__ = ["Ended", "Followed", "Piece", "Store", "StoreError", "Stored", "prepare"]

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("apiserver.store")


class StoreError(Exception):
    """The store cannot be used, or could not be used for this."""


def prepare(settings: StoreSettings, directory: Path) -> StoreSettings:
    """Make the file, before any fork, so that one that cannot be made is known in the first second.

    Returns the settings with its path: in `directory`, the run's own, where none was given. Raises StoreError.
    """
    path = Path(settings.path).absolute() if settings.path is not None else directory / "responses.db"
    try:
        open_database(path).close()
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"the responses store {path} cannot be used: {error}") from error
    return replace(settings, path=str(path))


class Store:
    """Every method does its work on the store's thread, in the order of the calls, and may raise StoreError."""

    def __init__(
        self, settings: StoreSettings, lost: Callable[[bytes, int], Ended], *, expire_seconds: float = 60.0
    ) -> None:
        """`settings` are `prepare`'s. For `lost` see Database. Every `expire_seconds` what is too old is deleted."""
        self.settings = settings
        self._lost = lost
        self._expire_seconds = expire_seconds
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._database: Database | None = None
        self._expiry: asyncio.TimerHandle | None = None

    async def _call(self, method: Callable[Concatenate[Database, P], T], *arguments: P.args, **options: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        if self._expiry is None:
            self._expiry = loop.call_later(self._expire_seconds, self._expire)
        try:
            return await loop.run_in_executor(self._thread, lambda: method(self._open(), *arguments, **options))
        except (OSError, sqlite3.Error) as error:
            log.error("the responses store failed: %s", error)
            raise StoreError(str(error)) from error

    def _open(self) -> Database:
        if self._database is None:
            assert self.settings.path is not None, "prepare has said where it is"
            self._database = Database(Path(self.settings.path), self.settings, self._lost)
        return self._database

    def _expire(self) -> None:
        self._expiry = asyncio.get_running_loop().call_later(self._expire_seconds, self._expire)
        self._thread.submit(self._expire_quietly)

    def _expire_quietly(self) -> None:
        try:
            self._open().expire()
        except (OSError, sqlite3.Error) as error:
            log.error("the responses store failed: %s", error)

    async def put(self, response: Stored, item_ids: Sequence[str], *, ended: bool) -> None:
        await self._call(Database.put, response, item_ids, ended=ended)

    async def append(self, response_id: str, piece: Piece) -> None:
        await self._call(Database.append, response_id, piece)

    async def end(
        self,
        response_id: str,
        status: str,
        document: bytes,
        item_ids: Sequence[str],
        last: Piece | None = None,
    ) -> None:
        await self._call(Database.end, response_id, status, document, item_ids, last)

    async def get(self, response_id: str) -> Stored | None:
        return await self._call(Database.get, response_id)

    async def chain(self, response_id: str) -> list[Stored]:
        return await self._call(Database.chain, response_id)

    async def having(self, item_ids: Sequence[str]) -> list[Stored]:
        return await self._call(Database.having, item_ids)

    async def cancel(self, response_id: str, change: Callable[[bytes], bytes]) -> None:
        await self._call(Database.cancel, response_id, change)

    async def delete(self, response_id: str) -> Stored | None:
        return await self._call(Database.delete, response_id)

    async def follow(self, response_id: str, first: int) -> Followed | None:
        return await self._call(Database.follow, response_id, first)

    async def close(self) -> None:
        """After the last call; what was called is done before it."""
        if self._expiry is not None:
            self._expiry.cancel()
        database = self._database
        if database is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, database.close)
        self._thread.shutdown()
