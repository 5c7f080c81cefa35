"""What one answer is written to: the transport, with its head held back until the body is there."""

import asyncio
from collections.abc import Callable

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CHUNKED = b"\r\ntransfer-encoding: chunked\r\n"


class Outgoing:
    """The transport as one answer sees it: its head waits for the body, and it closes our way.

    uvicorn writes head and body apart, which are two system calls, a tenth of a short request. An answer whose head
    must leave before there is a body (a stream) writes an empty piece.

    uvicorn sends a body of unknown length in chunks to everybody. Who speaks HTTP/1.0 knows none (RFC 9112, 6.1): its
    body is as it is, and ends with the connection.
    """

    __slots__ = ("_close", "_head", "_knows_chunks", "_transport", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None], *, knows_chunks: bool) -> None:
        self._transport = transport
        self._close = close
        self._knows_chunks = knows_chunks
        self._head = b""
        self.is_closing = transport.is_closing
        self.write: Callable[[bytes], None] = self._hold

    def _hold(self, data: bytes) -> None:
        if data == _CONTINUE:
            self._transport.write(data)
            return
        self._head = data
        self.write = self._join

    def _join(self, data: bytes) -> None:
        head, self._head = self._head, b""
        self.write = self._transport.write  # from now on nothing stands between: this is once a token
        if not self._knows_chunks and _CHUNKED in head:
            self.write = self._write_bare
            head, data = head.replace(_CHUNKED, b"\r\n", 1), _chunk_of(data)
        self._transport.writelines((head, data))

    def _write_bare(self, data: bytes) -> None:
        self._transport.write(_chunk_of(data))

    def flush(self) -> None:
        """The answer is at its end: a head without a body (to HEAD) leaves now."""
        if self._head:
            self._join(b"")

    def close(self) -> None:
        self.flush()
        self._close()


def _chunk_of(data: bytes) -> bytes:
    """What uvicorn wrote as one chunk, with or without the last one behind it; or as none."""
    size, _, rest = data.partition(b"\r\n")
    return rest[: int(size, 16)] if size else b""
