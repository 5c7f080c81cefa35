"""A raw connection for clients that behave as they like: pipeline, read slowly, leave in the middle."""

import asyncio
import contextlib
import socket
from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import httptools

_SMALL_BUFFER = 4096
_CONNECT_SECONDS = 30.0


@dataclass(slots=True)
class Reply:
    """What came back so far. Without `complete`, its connection ended first: we left, or it was lost."""

    leave_after: int | None = None
    """So many bytes of the body are enough: then hang up."""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False
    left: bool = False
    number: int = 1
    """Of the requests on its connection."""
    began: float = field(default_factory=monotonic)
    ended: float = 0.0

    @property
    def closes(self) -> bool:
        """Whether it says that nothing follows it on its connection."""
        return self.headers.get("connection", "").lower() == "close"


class Connection(asyncio.Protocol):
    """One TCP connection; its replies come in the order of its requests."""

    def __init__(self, pause_seconds: float, resets: bool) -> None:
        self._pause = pause_seconds
        self._resets = resets
        self._waiting: deque[tuple[Reply, asyncio.Future[Reply]]] = deque()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self.opened = 0.0
        self.port = 0
        self.served = 0
        self.closed = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, host: str, port: int, *, pause_seconds: float = 0.0, resets: bool = False) -> "Connection":
        """`pause_seconds` between two reads makes a slow reader; `resets` leaves by RST. Raises OSError."""
        loop = asyncio.get_running_loop()
        began = monotonic()
        sock = socket.socket()
        sock.setblocking(False)
        try:
            if pause_seconds:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
            if resets:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            async with asyncio.timeout(_CONNECT_SECONDS):
                await loop.sock_connect(sock, (host, port))
            _, connection = await loop.create_connection(lambda: cls(pause_seconds, resets), sock=sock)
        except BaseException:
            sock.close()
            raise
        connection.opened = began  # not later: the API server may have it, and die, before we run again
        return connection

    @property
    def is_open(self) -> bool:
        return not self.closed.done() and not self._transport.is_closing()

    def send(self, request: bytes, leave_after: int | None = None) -> "asyncio.Future[Reply]":
        """Write a request; the future is done when its reply has ended, one way or another."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append((Reply(leave_after, number=self.served + len(self._waiting) + 1), future))
        if not self.is_open:
            self._end_all()
        else:
            self._transport.write(request)
        return future

    def leave(self) -> None:
        """Hang up; what was not complete counts as left."""
        for reply, _ in self._waiting:
            reply.left = True
        if self._resets:
            self._transport.abort()
        else:
            self._transport.close()
        self._end_all()

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()
            self._end_all()
            return
        if self._pause and self.is_open:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(self._pause, self._read_on)

    def _read_on(self) -> None:
        if self.is_open:
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._end_all()
        if not self.closed.done():
            self.closed.set_result(None)

    def _end_all(self) -> None:
        while self._waiting:
            reply, future = self._waiting.popleft()
            reply.ended = monotonic()
            if not future.done():
                future.set_result(reply)

    # ---- httptools ----

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._waiting:
            self._waiting[0][0].headers[name.decode().lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._waiting:
            self._waiting[0][0].status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if not self._waiting:
            return
        reply = self._waiting[0][0]
        reply.body += body
        if reply.leave_after is not None and len(reply.body) >= reply.leave_after:
            self.leave()

    def on_message_complete(self) -> None:
        if not self._waiting:
            return
        if self._waiting[0][0].status < 200:
            return
        reply, future = self._waiting.popleft()
        reply.complete = True
        reply.ended = monotonic()
        self.served += 1
        if reply.closes:
            self._transport.close()
        if not future.done():
            future.set_result(reply)


async def closing(connection: Connection) -> None:
    """Leave it and wait until the socket is gone."""
    if not connection.closed.done():
        connection.leave()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5):
            await connection.closed
