"""The stream of a response that is, or was, made in the background: out of the store, from any event on."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from apiserver.http import sse
from apiserver.http.call import Call
from apiserver.http.kept import Run
from apiserver.protocol.exchange import Chunk
from apiserver.store import Store, StoreError

_POLL_SECONDS = 0.05  # for news of a response that another API server makes


async def follow(call: Call, store: Store, response_id: str, first: int, running: Callable[[str], Run | None]) -> None:
    """Its events from number `first` on: those that there are, and the others as they come, to the last.

    `running` tells who makes it, if that is this API server.
    """
    await call.start_stream()
    ended = False
    while not ended:
        run = running(response_id)
        news = None if run is None else run.news  # asked for before the look: what comes after it is not missed
        try:
            found = await store.follow(response_id, first)
        except StoreError:
            await call.write(_broken(first, "The responses store failed."))
            break
        if found is None:
            await call.write(_broken(first, "The response was deleted."))
            break
        pieces, ended = found
        frames = list(_cut(pieces, first))
        first += len(frames)
        if frames:
            await call.write(b"".join(frames))
        elif not ended:
            await _hear(news)
    await call.end_stream()


def _cut(pieces: Sequence[tuple[int, bytes]], first: int) -> Iterator[bytes]:
    """Single events, without those before `first`. JSON has no line breaks of its own, so a blank line is an end."""
    for number_of_first, data in pieces:
        for number, frame in enumerate(data.split(b"\n\n")[:-1], number_of_first):
            if number >= first:
                yield frame + b"\n\n"


async def _hear(news: asyncio.Event | None) -> None:
    """Wait until there may be more."""
    if news is None:
        await asyncio.sleep(_POLL_SECONDS)
    else:
        await news.wait()


def _broken(sequence_number: int, message: str) -> bytes:
    event = {"type": "error", "code": "server_error", "message": message, "param": None}
    return sse.encode(Chunk(event | {"sequence_number": sequence_number}, "error"))
