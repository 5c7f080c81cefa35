"""THE endpoint: decode, run, fold or stream. The only place that asks whether a request streams."""

import asyncio
import logging
import time
from contextlib import aclosing

import msgspec

from apiserver.errors import ApiError, Internal
from apiserver.events import Event, Finished, Result, Started, TextDelta
from apiserver.http import sse
from apiserver.http.call import Call
from apiserver.http.service import Service
from apiserver.http.time_limit import deadline_of
from apiserver.pipeline import Events
from apiserver.pipeline.deadline import within
from apiserver.protocol.exchange import Body, Chunk, Exchange, Pieces
from apiserver.timings import Timings

log = logging.getLogger("apiserver.endpoint")
_encode = msgspec.json.Encoder().encode
_LOOP_SECONDS = 0.002  # the longest that encoding an answer may hold the loop


class Endpoint:
    """Serves one dialect."""

    def __init__(self, dialect: type[Exchange], service: Service) -> None:
        self._dialect = dialect
        self._service = service
        self._tells_timing = service.server_timing

    async def __call__(self, call: Call) -> None:
        try:
            call.require_json()
            deadline = deadline_of(call, self._service)
            raw = await within(deadline, call.body())
            timings = Timings()
            watch = _Watch(self._service, timings)
            card = self._service.card()
            exchange = self._dialect(raw, card)
            del raw  # a 32 MB body must not live as long as its stream
            timings.parse = watch.seconds
            events = self._service.pipeline.run(exchange.job, card, timings, deadline)
            async with aclosing(events):
                if exchange.stream:
                    await self._stream(call, exchange, events, watch)
                else:
                    await self._whole(call, exchange, events, watch)
        except ApiError as error:
            await respond_error(call, error, self._dialect)

    async def _whole(self, call: Call, exchange: Exchange, events: Events, watch: "_Watch") -> None:
        result = Result()
        async for batch in events:
            for event in batch:
                result.feed(event)
                watch.see(event)
        body = exchange.body(result)
        data = await _encoded(body)
        watch.end(result)
        headers = [*body.headers, ("server-timing", watch.timings.header())] if self._tells_timing else body.headers
        await call.respond(200, data, body.content_type.encode(), headers)

    async def _stream(self, call: Call, exchange: Exchange, events: Events, watch: "_Watch") -> None:
        result = Result()
        first = await anext(events)  # a refusal still gets its status: no header has left
        await call.start_stream([("server-timing", watch.timings.header_at_start())] if self._tells_timing else ())
        await _write(call, exchange, first, result, watch)
        try:
            async for batch in events:
                await _write(call, exchange, batch, result, watch)
            last = list(exchange.last_chunks(result))
        except ApiError as error:
            log.warning("%s stream failed: %s", call.request_id, error)
            last = _error_end(call, exchange, error)
        except Exception:
            log.exception("%s stream failed", call.request_id)
            last = _error_end(call, exchange, Internal("Internal error."))
        watch.end(result)
        await call.end_stream(b"".join([sse.encode(chunk) for chunk in last]))

    @property
    def dialect(self) -> type[Exchange]:
        return self._dialect


def _error_end(call: Call, exchange: Exchange, error: ApiError) -> list[Chunk]:
    error.request_id = call.request_id
    return list(exchange.error_chunks(error))


async def respond_error(call: Call, error: ApiError, dialect: type[Exchange]) -> None:
    """The dialect's error document with the error's status."""
    if error.status >= 500:
        log.log(
            logging.ERROR if error.status == 500 else logging.INFO, "%s %s: %s", call.request_id, error.status, error
        )
    error.request_id = call.request_id
    await call.respond(error.status, _encode(dialect.error(error)), headers=error.headers.items())


async def _write(call: Call, exchange: Exchange, batch: list[Event], result: Result, watch: "_Watch") -> None:
    """What arrived together leaves together."""
    frames: list[bytes] = []
    for event in batch:
        result.feed(event)
        watch.see(event)
        for chunk in exchange.chunks(event):
            frames.append(sse.encode(chunk))  # noqa: PERF401  # a comprehension in the loop is slower for one chunk
    if frames:
        await call.write(frames[0] if len(frames) == 1 else b"".join(frames))


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


class _Watch:
    """What the metrics want to know of one request."""

    __slots__ = ("_began", "_last_text", "_metrics", "timings")

    def __init__(self, service: Service, timings: Timings) -> None:
        self._metrics = service.metrics
        self._began = time.perf_counter()
        self._last_text = 0.0
        self.timings = timings

    @property
    def seconds(self) -> float:
        """Since the body was there."""
        return time.perf_counter() - self._began

    def see(self, event: Event) -> None:
        kind = type(event)
        if kind is TextDelta:
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
        self._metrics.job_ended(result.prompt_tokens, result.cached_tokens, self.seconds)
