"""One HTTP/1.1 connection: uvicorn's httptools protocol, with limits, a count on the board and a polite end.

The only file that knows uvicorn's insides; uvicorn is pinned to a minor version for it. What it changes:

- a head that is too large or too slow, and a body that stalls, are answered and closed;
- what is not HTTP gets our error document instead of plain text, after the answers to the requests before it;
- an answer that comes before its request's end does not die of the reset that closing at once would mean;
- a wish for HTTP/2 on a plain connection (Java's client has it) is declined without losing the request's body;
- when the client goes, the task that answers it is cancelled: that one mechanism aborts the engine's work on every
  route, streaming or not, without a listener task per request;
- retiring (drain) answers the next request with `Connection: close` instead of resetting it.

Pipelining. uvicorn's `cycle` is the newest request, `pipeline` holds those that wait for their turn, newest first. The
one whose turn it is, is `_answering`. What is behind those is in the `_backlog`, not yet looked at.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, cast

import httptools
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from apiserver.board import Cell, Slot
from apiserver.config import HttpSettings
from apiserver.errors import ApiError, HeadersTooLarge, InvalidRequest, RequestTimeout
from apiserver.http import root_path
from apiserver.http.backlog import MOST_AHEAD, PIECE_BYTES, Backlog
from apiserver.http.outgoing import Outgoing
from apiserver.http.patience import BodyPace, SendWatch, unsent_bytes
from apiserver.http.refusal import path_of, refusal
from apiserver.metrics import Metrics
from apiserver.protocol.exchange import Dialect

Speaker = Callable[[str, bool], Dialect]
"""Who writes an error about what was asked of a path; whether the client has said that it speaks Anthropic's API."""

REFUSED = "apiserver.refused"
"""In the scope of a request that the connection answers itself, while the application still reads it: the status."""

_MOST_HEADERS = 256
_NOTED_HEADERS = frozenset((b"content-length", b"transfer-encoding", b"expect"))
_LINGER_SECONDS = 5.0  # how long a client that is still sending may take to notice that it was answered

log = logging.getLogger("apiserver.access")


class _Stop(Exception):
    """Raised in a callback: the parser shall not go on."""


class _Phase(Enum):
    """What the client is sending."""

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


_NOTHING, _HEAD, _BODY = _Phase  # an enum's members are slow to look up, and this is done for every header


class Connection(HttpToolsProtocol):
    """See the module. Time limits are enforced by `sweep`, which the server calls for each connection once a second."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        slot: Slot,
        metrics: Metrics,
        settings: HttpSettings,
        max_body_bytes: int,
        speaker: Speaker,
    ) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self._slot = slot
        self._metrics = metrics
        self._settings = settings
        self._max_body_bytes = max_body_bytes
        self._speaker = speaker
        self.was_made = False  # the server counted it when it accepted; from here on its end uncounts it
        self._answering: RequestResponseCycle | None = None
        self._answer: asyncio.Task[None] | None = None
        self._gone = False  # nobody will read an answer, or there will be none
        self._retiring = False
        self._refusal: bytes | None = None  # of what came last; nothing more is read
        self._lingering = False
        self._phase = _NOTHING
        self._since = time.monotonic()  # when the phase began
        self._body_pace = BodyPace()
        self._send_watch = SendWatch()
        self._head_bytes = 0
        self._field_bytes = 0  # of a field that goes on, whose end will count all of it
        self._framing: tuple[bytes, bytes] | None = None  # the header that says how long the body is
        self._announced_bytes: int | None = None
        self._body_bytes = 0  # that came behind the piece with the head's end
        self._unwanted_bytes = 0  # of a body whose request is answered already
        self._declines_upgrade = False
        self._is_replaying = False  # the parser is told a head that was told before

    # ---- the connection ----

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.flow = self._backlog = Backlog(transport)
        self.was_made = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.cells[Cell.CONNECTIONS] -= 1
        self.pipeline.clear()
        super().connection_lost(exc)
        self._cancel_answer()

    def _cancel_answer(self) -> None:
        self._gone = True
        if self._answer is not None and not self._answer.done():
            self._answer.cancel()

    @property
    def is_busy(self) -> bool:
        """Whether a request is being read or answered."""
        return not self._lingering and (self._phase is _HEAD or self._answering is not None)

    def retire(self) -> None:
        """Take no request after the next answer that begins. An idle connection is closed by a later sweep: a request
        on its way would meet a reset. So would the one behind an answer whose head has left without `close` in it."""
        self._retiring = True
        if self._answering is not None:
            if not self.cycle.response_started:
                self.cycle.keep_alive = False  # the newest: those before it are still answered
        elif self._phase is _NOTHING:
            self._since = time.monotonic()  # the grace begins now, also for one that has been idle for long

    def sweep(self, now: float, idle_seconds: float) -> None:
        """Enforce the time limits of the present phase."""
        if self._send_watch.is_stuck(now, unsent_bytes(self.transport), self._settings.send_seconds):
            self._metrics.slow_reader_cut()
            self.transport.abort()
        if self.transport.is_closing():
            return
        waited = now - self._since
        if self._lingering:
            if waited > min(_LINGER_SECONDS, idle_seconds):
                self.transport.close()
        elif self._phase is _HEAD:
            if self._is_too_late(now):
                self._refuse(RequestTimeout("The request's headers did not arrive in time."))
        elif self._phase is _BODY:
            if self._is_too_slow(now, idle_seconds):
                self._refuse(RequestTimeout("The request's body stopped arriving, or came too slowly."))
        elif self._answering is None and waited > self._most_idle(idle_seconds):
            self.transport.close()

    def _is_too_late(self, now: float) -> bool:
        if self.flow.read_paused:
            self._since = now  # the rest of the head may be there: we are not looking
        return now - self._since > self._settings.head_seconds

    def _is_too_slow(self, now: float, idle_seconds: float) -> bool:
        # Nobody waits for the rest of a body whose request is answered; a drain less than others.
        seconds = self._settings.body_seconds
        most = min(idle_seconds, seconds) if self._answering is None else seconds
        return self._body_pace.is_too_slow(now, self._since, self._body_bytes, most, paused=self.flow.read_paused)

    def _most_idle(self, idle_seconds: float) -> float:
        """A connection's first request must come sooner than a further one."""
        is_new = cast(RequestResponseCycle | None, self.cycle) is None
        return min(idle_seconds, self._settings.head_seconds) if is_new else idle_seconds

    # ---- refusing what never became a request ----

    def _refuse(self, error: ApiError) -> None:
        """Answer below the application, and close: at once, or after the answers to the requests before it."""
        if self._refusal is not None or self._lingering:
            return
        self._refusal = refusal(error, self._dialect())
        self._metrics.connection_refused(error.status)
        if self._settings.access_log:
            log.info("- no request: %d %s", error.status, error)
        if self._phase is _BODY:
            self._give_up(self.cycle, error.status)
        if self._answering is None and not self.transport.is_closing():
            self._send_refusal(self._refusal)

    def _dialect(self) -> Dialect:
        """In whose form what came last is refused: its path's, as far as that is known."""
        if self._phase is _NOTHING:
            return self._speaker("", False)
        path = self.scope["path"] if self._phase is _BODY else path_of(cast(Any, self).url)
        is_anthropic = any(name == b"anthropic-version" for name, _ in self.headers)
        return self._speaker(path.removeprefix(self.root_path), is_anthropic)

    def _give_up(self, cycle: RequestResponseCycle, status: int) -> None:
        """This request's body will never be whole."""
        if not cycle.response_started:
            cast(dict[str, Any], cycle.scope)[REFUSED] = status
        if cycle is self._answering:
            self._cancel_answer()
            self._answering = None
        elif self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()
        if cycle.response_started:  # there is nothing more that could be said
            self.transport.close()

    def _send_refusal(self, answer: bytes) -> None:
        self.transport.write(answer)
        self._linger()

    def _linger(self) -> None:
        """Close, but not while the client is sending: the reset that its data would meet can overtake our answer.
        (RFC 9112, 9.6.) What it sends is thrown away; its end, or `sweep`, closes."""
        if self.transport.is_closing() or self._lingering:
            return
        self._lingering = True
        self._since = time.monotonic()
        self.pipeline.clear()
        self._backlog.take()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _close_after_answer(self) -> None:
        if self._phase is _BODY:
            self._linger()
        else:
            self.transport.close()

    # ---- what arrives ----

    def data_received(self, data: bytes) -> None:
        if self._phase is _BODY:
            self._body_bytes += len(data)
        self._look_at(self._backlog.take() + data)

    def _look_at(self, data: bytes) -> None:
        at = 0
        while at < len(data) and self._refusal is None and not self._lingering and not self.transport.is_closing():
            if len(self.pipeline) >= MOST_AHEAD:
                self._backlog.keep(data[at:])
                return
            piece = data[at : at + PIECE_BYTES]
            at += len(piece) - len(self._feed(piece))

    def _feed(self, data: bytes) -> bytes:
        """Returns what the parser has left over."""
        headers, size = self.headers, self._head_bytes
        try:
            self.parser.feed_data(data)
            if self._phase is _HEAD:
                in_one_field = self.headers is headers and self._head_bytes == size  # and its end is not in sight
                self._field_bytes = self._field_bytes + len(data) if in_one_field else 0
                self._count_head(0)
        except httptools.HttpParserUpgrade as upgrade:
            return self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError:
            self._refuse(InvalidRequest("Invalid HTTP request: its target is no URL."))
        except httptools.HttpParserError as error:
            self._refuse(InvalidRequest(f"Invalid HTTP request: {error}."))
        except _Stop:
            pass
        return b""

    def _decline_upgrade(self, rest: bytes) -> bytes:
        """The parser takes what follows such a head for another protocol. It is the request's body, or what follows."""
        if self._declines_upgrade:
            self._declines_upgrade = False
            assert self._framing is not None
            self._is_replaying = True
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%s: %s\r\n\r\n" % self._framing)
            self._is_replaying = False
        return rest

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        most = self._settings.max_head_bytes
        if self._head_bytes + self._field_bytes > most or len(self.headers) > _MOST_HEADERS:
            self._refuse(HeadersTooLarge(f"The request's head has more than {most} bytes or {_MOST_HEADERS} headers."))
            raise _Stop

    def on_message_begin(self) -> None:
        if self._is_replaying:
            return
        super().on_message_begin()
        self._phase = _HEAD
        self._since = time.monotonic()
        self._head_bytes = self._field_bytes = 0
        self._framing = self._announced_bytes = None

    def on_url(self, url: bytes) -> None:
        if self._phase is _HEAD:
            self._head_bytes += len(url)
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is not _HEAD:
            if not self._is_replaying:  # a trailer, which must not pass for a header of the request that has begun
                self._count_head(len(name) + len(value) + 4)
            return
        self._head_bytes += len(name) + len(value) + 4  # checked when the head is whole, or what has arrived of it read
        name = name.lower()
        self.headers.append((name, value))
        if name in _NOTED_HEADERS:
            self._note(name, value)

    def _note(self, name: bytes, value: bytes) -> None:
        if name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
            return
        self._framing = (name, value)
        if name == b"content-length":
            self._announced_bytes = int(value)

    def on_headers_complete(self) -> None:
        if self._is_replaying:
            return
        self._field_bytes = 0
        self._count_head(0)
        self._declines_upgrade = (
            self.parser.should_upgrade() and self._framing is not None and self._announced_bytes != 0
        )
        if self.parser.get_http_version() < "1.1":
            self.expect_100_continue = False  # nobody who speaks that knows what it would mean (RFC 9110, 10.1.1)
        super().on_headers_complete()
        if self.root_path:
            self.scope["path"] = root_path.once(self.root_path, self.scope["path"])
        self._phase = _BODY
        self._since = time.monotonic()
        self._body_bytes = self._unwanted_bytes = 0
        chunks = self.scope["http_version"] >= "1.1"
        self.cycle.transport = cast(Any, Outgoing(self.transport, self._close_after_answer, knows_chunks=chunks))
        if self._retiring or (self._announced_bytes or 0) > self._max_body_bytes:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            self._unwanted_bytes += len(body)
            if self._unwanted_bytes > self._max_body_bytes:
                self._linger()
                raise _Stop
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._declines_upgrade or self._is_replaying:
            return  # of the body the parser knows nothing yet
        self._phase = _NOTHING
        self._since = time.monotonic()
        super().on_message_complete()
        if not self.pipeline and not self.transport.is_closing():
            # uvicorn stops reading in a large body and goes on when more of it is asked for. Nobody asks for more of a
            # whole one: the end of the connection would not be seen before the answer's.
            self.flow.resume_reading()

    # ---- the application ----

    def on_response_complete(self) -> None:
        """As uvicorn's, without a timer for each answer: `sweep` ends idle connections."""
        self.server_state.total_requests += 1
        if self._answering is not None:
            cast(Outgoing, self._answering.transport).flush()
        self._answering = None
        if self._phase is _NOTHING:
            self._since = time.monotonic()
        if self._lingering or self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._refusal is not None:
            self._send_refusal(self._refusal)
            return
        self._look_at(self._backlog.take())
        self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        application = cast(ASGI3Application, functools.partial(self._until_gone, cycle))
        self._answering = cycle
        self._answer = task = self.loop.create_task(cycle.run_asgi(application))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _until_gone(self, cycle: RequestResponseCycle, scope: Scope, receive: Receive, send: Send) -> None:
        """The application; cancelled quietly when nobody waits for its answer any more, loudly otherwise."""
        try:
            await cast(ASGIApp, cast(Any, self).app)(scope, receive, send)
        except asyncio.CancelledError:
            if not self._gone:
                raise
            cycle.disconnected = True
