"""THE endpoint: decode, run, fold or stream. The only place that asks whether a request streams."""

import asyncio
import logging
import time
from collections.abc import Iterable
from contextlib import aclosing
from typing import Protocol

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError, Internal
from apiserver.events import Event, Finished, ReasoningDelta, Result, Started, TextDelta, ToolCallDelta
from apiserver.http import sse
from apiserver.http.call import Call
from apiserver.http.service import Service
from apiserver.http.time_limit import deadline_of
from apiserver.pipeline import Events
from apiserver.pipeline.deadline import Deadline, within
from apiserver.protocol.exchange import Body, Chunk, Dialect, OpenExchange, Pieces
from apiserver.timings import Timings

log = logging.getLogger("apiserver.endpoint")
_encode = msgspec.json.Encoder().encode
_LOOP_SECONDS = 0.002  # the longest that encoding an answer may hold the loop


class Sink(Protocol):
    """Where an answer goes: a Call, or what stands before one, or in its place."""

    @property
    def request_id(self) -> str: ...

    @property
    def owner(self) -> str:
        """Whose request it is."""
        ...

    async def respond(
        self,
        status: int,
        body: bytes | list[bytes],
        content_type: bytes = b"application/json",
        headers: Iterable[tuple[str, str]] = (),
    ) -> None: ...

    async def start_stream(self, headers: Iterable[tuple[str, str]] = ()) -> None: ...

    async def write(self, data: bytes) -> None: ...

    async def end_stream(self, data: bytes = b"") -> None: ...


class Endpoint:
    """Serves one dialect."""

    def __init__(self, dialect: Dialect, service: Service) -> None:
        self._dialect = dialect
        self._service = service

    async def __call__(self, call: Call) -> None:
        try:
            call.require_json()
            deadline = deadline_of(call, self._service)
            raw = await within(deadline, call.body())
            watch = Watch(self._service)
            card = self._service.card()
            exchange = self._dialect(raw, card)
            del raw  # a 32 MB body must not live as long as its stream
            watch.parsed()
            await answer(call, exchange, card, self._service, watch, deadline)
        except ApiError as error:
            await respond_error(call, error, self._dialect)

    @property
    def dialect(self) -> Dialect:
        return self._dialect


async def answer(
    sink: Sink,
    exchange: OpenExchange,
    card: Card,
    service: Service,
    watch: "Watch",
    deadline: Deadline | None,
) -> None:
    """Run the exchange's job; what it says goes to the sink. Raises an ApiError where nothing has gone there yet."""
    events = service.pipeline.run(exchange.job, card, watch.timings, deadline, sink.owner)
    async with aclosing(events):
        if exchange.stream:
            await _stream(sink, exchange, events, watch, tells_timing=service.server_timing)
        else:
            await _whole(sink, exchange, events, watch, tells_timing=service.server_timing)


async def _whole(sink: Sink, exchange: OpenExchange, events: Events, watch: "Watch", *, tells_timing: bool) -> None:
    result = Result()
    async for batch in events:
        for event in batch:
            result.feed(event)
            watch.see(event)
    body = exchange.body(result)
    data = await _encoded(body)
    watch.end(result)
    headers = [*body.headers, ("server-timing", watch.timings.header())] if tells_timing else body.headers
    await sink.respond(200, data, body.content_type.encode(), headers)


async def _stream(sink: Sink, exchange: OpenExchange, events: Events, watch: "Watch", *, tells_timing: bool) -> None:
    result = Result()
    first = await anext(events)  # a refusal still gets its status: no header has left
    await sink.start_stream([("server-timing", watch.timings.header_at_start())] if tells_timing else ())
    try:
        await _write(sink, exchange, first, result, watch)
        async for batch in events:
            await _write(sink, exchange, batch, result, watch)
        last = list(exchange.last_chunks(result))
    except ApiError as error:
        log.warning("%s stream failed: %s", sink.request_id, error, extra={"seldom": "stream"})
        last = _error_end(sink, exchange, error)
    except Exception:
        log.exception("%s stream failed", sink.request_id)
        last = _error_end(sink, exchange, Internal("Internal error."))
    watch.end(result)
    await sink.end_stream(b"".join([sse.encode(chunk) for chunk in last]))


def _error_end(sink: Sink, exchange: OpenExchange, error: ApiError) -> list[Chunk]:
    error.request_id = sink.request_id
    return list(exchange.error_chunks(error))


async def respond_error(call: Call, error: ApiError, dialect: Dialect) -> None:
    """The dialect's error document with the error's status."""
    if error.status == 500:
        log.error("%s 500: %s", call.request_id, error)
    elif error.status > 500:
        log.info("%s %d: %s", call.request_id, error.status, error, extra={"seldom": str(error.status)})
    error.request_id = call.request_id
    await call.respond(error.status, _encode(dialect.error(error)), headers=error.headers.items())


async def _write(sink: Sink, exchange: OpenExchange, batch: list[Event], result: Result, watch: "Watch") -> None:
    """What arrived together leaves together."""
    frames: list[bytes] = []
    for event in batch:
        result.feed(event)
        watch.see(event)
        for chunk in exchange.chunks(event):
            frames.append(sse.encode(chunk))  # noqa: PERF401  # a comprehension in the loop is slower for one chunk
    if frames:
        await sink.write(frames[0] if len(frames) == 1 else b"".join(frames))


async def _encoded(body: Body) -> bytes | list[bytes]:
    """The answer's bytes. A large one comes in parts, with the loop given back while they are made."""
    if isinstance(body.document, bytes):
        return body.document
    if not isinstance(body.document, Pieces):
        return _encode(body.document)
    parts: list[bytes] = []
    pieces: list[bytes] = []
    pause = time.perf_counter() + _LOOP_SECONDS
    for piece in body.document.pieces:
        pieces.append(piece)
        if time.perf_counter() > pause:
            parts.append(b"".join(pieces))
            pieces.clear()
            await asyncio.sleep(0)
            pause = time.perf_counter() + _LOOP_SECONDS
    return [*parts, b"".join(pieces)]


class Watch:
    """What the metrics want to know of one request, from the moment that its body was there."""

    __slots__ = ("_began", "_last_text", "_metrics", "timings")

    def __init__(self, service: Service) -> None:
        self._metrics = service.metrics
        self._began = time.perf_counter()
        self._last_text = 0.0
        self.timings = Timings()

    def parsed(self) -> None:
        self.timings.parse = self._seconds

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def see(self, event: Event) -> None:
        kind = type(event)
        if kind is TextDelta or kind is ReasoningDelta or kind is ToolCallDelta:
            now = time.perf_counter()
            if self._last_text:
                self._metrics.next_text(now - self._last_text)
            else:
                self._metrics.first_text(now - self._began)
            self._last_text = now
        elif isinstance(event, Finished):
            self._metrics.choice_ended(event.reason, event.output_tokens)
        elif kind is Started:
            self._metrics.preprocessed(self.timings.render + self.timings.tokenize)

    def end(self, result: Result) -> None:
        self._metrics.job_ended(result.prompt_tokens, result.cached_tokens, self._seconds)
