"""An HTTP/1.1 client for load tests that costs a few microseconds per streamed token.

A load generator that is itself busy measures itself. So: requests are bytes made before the clock starts, one
asyncio Protocol per keep-alive connection reads the reply without a task waking up per buffer, and the body of a
stream is looked at only as far as to see that a frame with a token in it came. The clock is read once per received
buffer; the frames that end in one buffer share its time. Nothing is decoded but the last JSON event, which has usage.

Not a general client: no redirects, no compression, no pipelining; a reply that it does not understand is a failure.
"""

import asyncio
import ssl
from dataclasses import dataclass, field
from time import perf_counter
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import urlsplit

import msgspec

from benchlib.parsing import EventScanner, ReplyError, ResponseParser


@dataclass(frozen=True, slots=True)
class Target:
    """Where the server is, and what every request to it carries."""

    host: str
    port: int
    authority: str
    prefix: str
    tls: ssl.SSLContext | None
    api_key: str | None

    @classmethod
    def parse(cls, url: str, *, api_key: str | None) -> Self:
        """Take `http://host:port`, with or without a path; a trailing `/v1` is dropped, since paths bring their own."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"not an http(s) URL: {url}")
        is_tls = parts.scheme == "https"
        return cls(
            host=parts.hostname,
            port=parts.port or (443 if is_tls else 80),
            authority=parts.netloc.rpartition("@")[2],
            prefix=parts.path.rstrip("/").removesuffix("/v1"),
            tls=ssl.create_default_context() if is_tls else None,
            api_key=api_key,
        )

    @property
    def is_local(self) -> bool:
        """Whether its process ids can be ours to look at."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def request(self, method: str, path: str, *, body: bytes = b"") -> bytes:
        """The whole request, ready to be written."""
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"Host: {self.authority}", "Accept: */*"]
        if self.api_key is not None:
            lines.append(f"Authorization: Bearer {self.api_key}")
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass(slots=True)
class Reply:
    """What came back. `failure` is None or the kind of failure, in which case the rest is as far as it got."""

    status: int = 0
    head: bytes = b""
    """Status line and headers, in lower case."""
    is_event_stream: bool = False
    has_done_event: bool = False
    token_times: list[float] = field(default_factory=list[float])
    document: bytes = b""
    """The body; of an event stream, its last JSON event."""
    sent_at: float = 0.0
    ended_at: float = 0.0
    failure: str | None = None


class Connection(asyncio.Protocol):
    """One connection, kept alive; one request at a time. Closed by `close`, by the server, or by a failed request."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._closed: asyncio.Future[None] = loop.create_future()
        self._waiter: asyncio.Future[Reply] | None = None
        self._parser = ResponseParser()
        self._events = EventScanner()
        self._pieces: list[bytes] = []
        self._sent_at = 0.0

    @classmethod
    async def open(cls, target: Target) -> "Connection":
        """Connect; raises OSError."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(loop), target.host, target.port, ssl=target.tls)
        return connection

    @property
    def is_open(self) -> bool:
        """Whether another request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, request: bytes, *, timeout_seconds: float) -> Reply:
        """Write a request and wait for the end of its reply. Never raises for what the server does: see `failure`."""
        waiter: asyncio.Future[Reply] = self._loop.create_future()
        self._parser, self._events, self._pieces = ResponseParser(), EventScanner(), []
        self._sent_at = perf_counter()
        if not self.is_open or self._transport is None:
            return self._reply("connection closed")
        self._waiter = waiter
        alarm = self._loop.call_later(timeout_seconds, self._fail, "timeout")
        self._transport.write(request)
        try:
            return await waiter
        finally:
            alarm.cancel()
            self._waiter = None

    async def close(self) -> None:
        """Close and wait until the socket is gone, so that none is left to the garbage collector."""
        if self._transport is not None:
            self._transport.abort()
        await self._closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        parser = self._parser
        if self._waiter is None:
            self._fail("bytes after the reply")
            return
        try:
            payload = parser.feed(data)
        except ReplyError as error:
            self._fail(str(error))
            return
        if payload:
            if parser.is_event_stream:
                self._events.feed(payload, now)
            else:
                self._pieces.append(payload)
        if parser.is_done:
            if parser.closes and self._transport is not None:
                self._transport.close()
            self._finish(None, now)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(None if self._parser.end() else "connection lost", perf_counter())
        if not self._closed.done():
            self._closed.set_result(None)

    def _fail(self, kind: str) -> None:
        self._finish(kind, perf_counter())
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, failure: str | None, now: float) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._reply(failure, ended_at=now))

    def _reply(self, failure: str | None, *, ended_at: float | None = None) -> Reply:
        parser, events = self._parser, self._events
        return Reply(
            status=parser.status,
            head=parser.head,
            is_event_stream=parser.is_event_stream,
            has_done_event=events.is_done,
            token_times=events.token_times,
            document=events.last_document if parser.is_event_stream else b"".join(self._pieces),
            sent_at=self._sent_at,
            ended_at=perf_counter() if ended_at is None else ended_at,
            failure=failure,
        )


class JsonClient:
    """Plain JSON requests beside the load (the model's name, token counts, the pool), on one connection of its own."""

    def __init__(self, target: Target, *, timeout_seconds: float = 60.0) -> None:
        self._target = target
        self._timeout_seconds = timeout_seconds
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and document (None if the body is no JSON); raises ReplyError if there is no reply, OSError before."""
        return await self._call(self._target.request("GET", path))

    async def post(self, path: str, document: object) -> tuple[int, Any]:
        """As `get`, with a body."""
        return await self._call(self._target.request("POST", path, body=msgspec.json.encode(document)))

    async def _call(self, request: bytes) -> tuple[int, Any]:
        # A server may have closed the idle connection meanwhile, seen or not yet seen: once more on a fresh one.
        reply = await self._send(request)
        if reply.failure == "connection lost":
            reply = await self._send(request)
        if reply.failure is not None:
            raise ReplyError(reply.failure)
        return reply.status, _decode(reply.document)

    async def _send(self, request: bytes) -> Reply:
        if self._connection is None or not self._connection.is_open:
            self._connection = await Connection.open(self._target)
        return await self._connection.send(request, timeout_seconds=self._timeout_seconds)


def _decode(document: bytes) -> Any:
    try:
        return msgspec.json.decode(document)
    except msgspec.DecodeError:
        return None
