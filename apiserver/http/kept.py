"""Answers that are kept: sinks that put a response into the store, before its client hears of it or in its place."""

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from apiserver.errors import ApiError, Internal
from apiserver.http import sse
from apiserver.http.call import Call
from apiserver.protocol.responses import Response
from apiserver.store import Piece, Store, Stored, StoreError

_RETRIES, _RETRY_SECONDS = 10, 1.0

log = logging.getLogger("apiserver.kept")


class Record:
    """One response's row in the store, from its first word to its last."""

    def __init__(self, store: Store, exchange: Response) -> None:
        self._store = store
        self._exchange = exchange
        self.is_open = False
        """It has begun and not ended: whoever gives up must end it, or it would be in progress for ever."""

    async def begin(self, *, ended: bool) -> None:
        """Raises Internal if it cannot be stored."""
        exchange = self._exchange
        stored = Stored(
            id=exchange.id,
            previous=exchange.previous,
            status=exchange.status,
            document=exchange.document,
            input=msgspec.json.encode(exchange.input_items),
            background=exchange.background,
            frames=0 if exchange.resumable else None,
        )
        self.is_open = not ended
        try:
            await self._store.put(stored, exchange.item_ids, ended=ended)
        except StoreError as error:
            self.is_open = False
            raise Internal("The response could not be stored.") from error

    async def end(self, last: Piece | None = None) -> None:
        """Raises StoreError."""
        exchange = self._exchange
        await self._store.end(exchange.id, exchange.status, exchange.document, exchange.item_ids, last)
        self.is_open = False

    async def end_surely(self, last: Piece | None = None) -> None:
        """As `end`; where that fails (the disk is full, say), again and again for a while."""
        for _ in range(_RETRIES):
            try:
                return await self.end(last)
            except StoreError:
                await asyncio.sleep(_RETRY_SECONDS)
        log.error("the end of %s could not be stored", self._exchange.id)
        return None

    async def give_up(self) -> None:
        """Its maker stops in the middle, or could not store its end."""
        self._exchange.cancel()
        await self.end_surely()


class Kept:
    """Before a Call: whatever leaves there whole is in the store already, so its client can go on from it at once."""

    def __init__(self, call: Call, record: Record, exchange: Response) -> None:
        self._call = call
        self._record = record
        self._exchange = exchange

    @property
    def request_id(self) -> str:
        return self._call.request_id

    @property
    def owner(self) -> str:
        return self._call.owner

    async def respond(
        self,
        status: int,
        body: bytes | list[bytes],
        content_type: bytes = b"application/json",
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        await self._record.begin(ended=True)
        await self._call.respond(status, body, content_type, headers)

    async def start_stream(self, headers: Iterable[tuple[str, str]] = ()) -> None:
        await self._record.begin(ended=False)
        await self._call.start_stream(headers)

    async def write(self, data: bytes) -> None:
        await self._call.write(data)

    async def end_stream(self, data: bytes = b"") -> None:
        try:
            await self._record.end()
        except StoreError:
            if self._exchange.status != "failed":  # else the client hears the worse news
                data = sse.encode(self._exchange.not_kept())
        await self._call.end_stream(data)


class Run:
    """In the place of a Call: a response that is made in the background, for whoever asks for it later."""

    def __init__(self, request_id: str, owner: str, store: Store, record: Record, exchange: Response) -> None:
        self.request_id = request_id
        self.owner = owner
        self.first_document = exchange.document
        self._refusal: ApiError | None = None
        self._store = store
        self._record = record
        self._exchange = exchange
        self._begun = asyncio.Event()
        self._told = 0  # events
        self.news = asyncio.Event()
        """Set when there is more of the stream, or its end; then another one stands here."""

    async def begun(self) -> None:
        """Return when it is in the store, and queued in the engine. Raises the ApiError of one that was refused."""
        await self._begun.wait()
        if self._refusal is not None:
            raise self._refusal

    def refuse(self, error: ApiError) -> None:
        """If it has not begun."""
        if not self._begun.is_set():
            self._refusal = error
            self._begun.set()

    def abandon(self) -> None:
        """Its maker has stopped, wherever that was: nobody waits for it any longer."""
        self.refuse(Internal("Internal error."))  # to nobody, unless something went wrong
        self._tell()

    async def respond(
        self,
        status: int,
        body: bytes | list[bytes],
        content_type: bytes = b"application/json",
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        raise AssertionError("a response in the background is always told step by step")

    async def start_stream(self, headers: Iterable[tuple[str, str]] = ()) -> None:
        await self._record.begin(ended=False)
        self._begun.set()

    async def write(self, data: bytes) -> None:
        """While this is being stored, what the engine makes meanwhile is merged, as for a slow client."""
        if self._exchange.resumable:
            first, count = self._counted(data)
            await self._store.append(self._exchange.id, Piece(first, count, data))
            self._tell()

    async def end_stream(self, data: bytes = b"") -> None:
        last = Piece(*self._counted(data), data) if self._exchange.resumable else None
        await self._record.end_surely(last)
        self._tell()

    def _counted(self, data: bytes) -> tuple[int, int]:
        """The first event's number and how many there are; a blank line ends each."""
        first, count = self._told, data.count(b"\n\n")
        self._told += count
        return first, count

    def _tell(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()
