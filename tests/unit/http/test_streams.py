"""How a stream ends when something in it goes wrong: with the dialect's own last words, whenever it was."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from apiserver.errors import ApiError, Overloaded
from apiserver.events import Event, Result, Started, TextDelta
from apiserver.http.endpoint import answer
from apiserver.http.kept import Run
from apiserver.protocol.exchange import Chunk


class Sink:
    """What a client is sent."""

    request_id = "r"
    owner = ""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.has_started = self.has_ended = False

    async def respond(self, status: int, body: Any, content_type: bytes = b"", headers: Any = ()) -> None:
        raise AssertionError("it streams")

    async def start_stream(self, headers: Iterable[tuple[str, str]] = ()) -> None:
        self.has_started = True

    async def write(self, data: bytes) -> None:
        self.sent.append(data)

    async def end_stream(self, data: bytes = b"") -> None:
        self.sent.append(data)
        self.has_ended = True


class Faulty:
    """A dialect that cannot write one of its events."""

    stream = True
    job = None

    def __init__(self, fails_at: type[Event]) -> None:
        self._fails_at = fails_at

    def chunks(self, event: Event) -> Iterator[Chunk]:
        if isinstance(event, cast(Any, self._fails_at)):
            raise ValueError("a bug")
        yield Chunk("an event")

    def last_chunks(self, result: Result) -> Iterator[Chunk]:
        yield Chunk("the end")

    def error_chunks(self, error: ApiError) -> Iterator[Chunk]:
        yield Chunk(f"error {error.status}")


def service_of(*batches: list[Event], error: Exception | None = None) -> Any:
    async def events(*_: object) -> AsyncGenerator[list[Event]]:
        for batch in batches:
            yield batch
        if error is not None:
            raise error

    return SimpleNamespace(pipeline=SimpleNamespace(run=events), server_timing=False)


def streamed(exchange: Any, service: Any) -> Sink:
    sink = Sink()
    watch = SimpleNamespace(see=lambda _: None, end=lambda _: None, timings=None)
    asyncio.run(answer(sink, exchange, cast(Any, None), service, cast(Any, watch), None))
    return sink


@pytest.mark.parametrize("fails_at", [Started, TextDelta])
def test_a_fault_of_ours_is_told_at_every_place_of_a_stream_also_at_its_first(fails_at: type[Event]) -> None:
    """vllm-mlx#101: a stream that is cut without a word makes its reader wait, or take it for whole."""
    sink = streamed(Faulty(fails_at), service_of([Started([])], [TextDelta(0, "a")]))
    assert (sink.has_started, sink.has_ended) == (True, True)
    assert sink.sent[-1] == b'data: "error 500"\n\n'


def test_a_failure_of_the_engine_ends_it_in_the_dialects_words() -> None:
    sink = streamed(Faulty(TextDelta), service_of([Started([])], error=Overloaded("later")))
    assert sink.sent == [b'data: "an event"\n\n', b'data: "error 503"\n\n']


def test_who_follows_what_its_maker_has_abandoned_hears_of_it() -> None:
    async def test() -> None:
        exchange = SimpleNamespace(document=b"{}", resumable=True)
        run = Run("r", "", cast(Any, None), cast(Any, None), cast(Any, exchange))
        news = run.news
        run.abandon()
        await asyncio.wait_for(news.wait(), 5)
        with pytest.raises(ApiError, match="Internal error"):
            await run.begun()

    asyncio.run(test())
