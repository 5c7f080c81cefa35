"""One HTTP/1.1 connection: uvicorn's httptools protocol, with limits, a count on the board and a polite end.

The only file that knows uvicorn's insides; uvicorn is pinned to a minor version for it. What it changes:

- a head that is too large or too slow, and a body that stalls, are answered and closed;
- what is not HTTP gets our error document instead of plain text;
- when the client goes, the task that answers it is cancelled: that one mechanism aborts the engine's work on every
  route, streaming or not, without a listener task per request;
- retiring (drain) answers the next request with `Connection: close` instead of resetting it.
"""

import asyncio
import time
from http import HTTPStatus
from typing import Any, cast

import msgspec
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from apiserver.board import Cell, Slot
from apiserver.config import HttpSettings
from apiserver.errors import ApiError, HeadersTooLarge, InvalidRequest, RequestTimeout, TooLarge
from apiserver.protocol.openai import error_document


class Connection(HttpToolsProtocol):
    """See the module. Time limits are enforced by `sweep`, which the server calls for each connection once a second."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, slot: Slot, settings: HttpSettings, max_body_bytes: int
    ) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self._slot = slot
        self._settings = settings
        self._max_body_bytes = max_body_bytes
        self._answer: asyncio.Task[None] | None = None
        self.was_made = False  # the server counted it when it accepted; from here on its end uncounts it
        self._gone = False
        self._retiring = False
        self._head_bytes = 0
        self._in_head = False
        self._in_body = False
        self._since = time.monotonic()  # when the present phase began, or its last byte came

    # ---- the connection ----

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.was_made = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        self._slot.cells[Cell.CONNECTIONS] -= 1
        self.pipeline.clear()
        super().connection_lost(exc)
        if self._answer is not None and not self._answer.done():
            self._answer.cancel()

    @property
    def _current(self) -> RequestResponseCycle | None:
        """The request being answered or the last one; uvicorn has None before the first, against its own types."""
        return self.cycle

    @property
    def is_busy(self) -> bool:
        """Whether a request is being read or answered."""
        cycle = self._current
        return self._in_head or (cycle is not None and not cycle.response_complete)

    def retire(self) -> None:
        """Take no request after the next answer. An idle connection is closed by a later sweep, not now: a request
        that is on its way would meet a reset."""
        self._retiring = True
        cycle = self._current
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
        elif not self._in_head:
            self._since = time.monotonic()  # the grace begins now, also for one that has been idle for long

    def sweep(self, now: float, idle_seconds: float) -> None:
        """Enforce the time limits of the present phase."""
        if self.transport.is_closing():
            return
        waited = now - self._since
        if self._in_head:
            if waited > self._settings.head_seconds:
                self.refuse(RequestTimeout("The request's headers did not arrive in time."))
        elif self._in_body:
            if waited > self._settings.body_seconds and not self.flow.read_paused:
                self.refuse(RequestTimeout("The request's body stopped arriving."))
        elif not self.is_busy and waited > idle_seconds:
            self.transport.close()

    def refuse(self, error: ApiError) -> None:
        """Answer below the application, and close. For requests that never became one, or never will."""
        cycle = self._current
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = msgspec.json.encode(error_document(error))
            head = (
                f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        if self._answer is not None and not self._answer.done():
            self._gone = True
            self._answer.cancel()
        self.transport.close()

    # ---- the parser's callbacks ----

    def data_received(self, data: bytes) -> None:
        self._since = time.monotonic()
        if self.parser is None or self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._settings.max_head_bytes and not self.transport.is_closing():
                self.refuse(HeadersTooLarge(f"The headers are larger than {self._settings.max_head_bytes} bytes."))

    def send_400_response(self, msg: str) -> None:
        self.refuse(InvalidRequest(msg))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._in_body = True
        super().on_headers_complete()
        if self._retiring:
            self.cycle.keep_alive = False
        length = next((value for name, value in self.headers if name == b"content-length"), b"0")
        if length.isdigit() and int(length) > self._max_body_bytes:
            # Before any of it is read: the limit costs nothing to anybody.
            self.refuse(TooLarge(f"The body is larger than {self._max_body_bytes} bytes, the limit of this server."))

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._since = time.monotonic()
        self._in_body = False
        super().on_response_complete()

    # ---- the application ----

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        application = cast(ASGI3Application, self._until_gone)
        self._answer = task = self.loop.create_task(cycle.run_asgi(application))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _until_gone(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application; cancelled quietly when the client went, loudly otherwise."""
        try:
            await cast(ASGIApp, self.app)(scope, receive, send)
        except asyncio.CancelledError:
            if not self._gone:
                raise
            self.cycle.disconnected = True
