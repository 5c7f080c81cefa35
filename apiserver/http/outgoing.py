"""What one answer is written to: the transport, with its head held back until the body is there."""

import asyncio
from collections.abc import Callable

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Outgoing:
    """The transport as one answer sees it: its head waits for the body, and it closes our way.

    uvicorn writes head and body apart, which are two system calls, a tenth of a short request. An answer whose head
    must leave before there is a body (a stream) writes an empty piece.
    """

    __slots__ = ("_close", "_head", "_transport", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self._close = close
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
        self._transport.writelines((head, data))

    def flush(self) -> None:
        """The answer is at its end: a head without a body (to HEAD) leaves now."""
        if self._head:
            self._join(b"")

    def close(self) -> None:
        self.flush()
        self._close()
