"""A network that is not there: bytes pass, later, sometimes much later, or not at all.

`async with forwarder(host, port) as network` in a test's loop; `python -m tests.forwarder LISTEN_HOST HOST PORT` as a
process, which takes the words cut, heal and reset from its standard input. TCP repairs loss, so a lost segment is one
that arrives a retransmission later, with all that follows it behind it.
"""

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

_SEGMENT_BYTES = 1448
_RETRANSMISSION_SECONDS = 0.25


@dataclass(frozen=True)
class Weather:
    delay_seconds: float = 0.0
    loss: float = 0.0  # of the segments, by chance
    seed: int = 0


class Forwarder:
    """Connections to `port` here go on to the other host's. `open_connections` counts them."""

    def __init__(self, target: tuple[str, int], weather: Weather) -> None:
        self._target = target
        self._weather = weather
        self._chance = random.Random(weather.seed)
        self._passes = asyncio.Event()
        self._passes.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.lost_segments = 0
        self.port = 0

    async def run(self, host: str) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, host, 0, limit=_SEGMENT_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def cut(self) -> None:
        """Nothing passes any more, and nobody is told: no end, no reset. New connections are taken and lead nowhere."""
        self._passes.clear()

    def heal(self) -> None:
        """What was held back arrives after all."""
        self._passes.set()

    def reset(self) -> None:
        """Every connection is reset, as by a firewall that was restarted."""
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepting = asyncio.current_task()
        assert accepting is not None
        self._tasks.add(accepting)
        accepting.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        await self._passes.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target, limit=_SEGMENT_BYTES)
        except OSError:
            writer.transport.abort()
            return
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._writers.add(sink)
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        segments: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(10_000)
        deliver = asyncio.create_task(self._deliver(segments, sink))
        with contextlib.suppress(OSError):
            while segment := await source.read(_SEGMENT_BYTES):
                await segments.put((loop.time() + self._seconds_under_way(), segment))
        await segments.put((loop.time() + self._weather.delay_seconds, b""))
        await deliver

    def _seconds_under_way(self) -> float:
        if self._chance.random() >= self._weather.loss:
            return self._weather.delay_seconds
        self.lost_segments += 1
        return self._weather.delay_seconds + _RETRANSMISSION_SECONDS

    async def _deliver(self, segments: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, segment = await segments.get()
                await asyncio.sleep(due - asyncio.get_running_loop().time())
                await self._passes.wait()
                if not segment:
                    break
                sink.write(segment)
                await sink.drain()
        self._writers.discard(sink)
        sink.close()

    async def close(self) -> None:
        self.heal()
        self.reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.reset()  # also what was being opened
        for _ in range(3):  # an abort is done in the loop's next turns; it may be the last that this loop has
            await asyncio.sleep(0)


@asynccontextmanager
async def forwarder(target: tuple[str, int], weather: Weather | None = None) -> AsyncGenerator[Forwarder]:
    network = Forwarder(target, weather or Weather())
    server = await network.run("127.0.0.1")
    try:
        yield network
    finally:
        server.close()
        await network.close()


async def main(listen_host: str, host: str, port: str, delay_seconds: str, loss: str) -> None:
    network = Forwarder((host, int(port)), Weather(float(delay_seconds), float(loss), seed=6))
    await network.run(listen_host)
    sys.stdout.write(f"forwarding on port {network.port}\n")
    sys.stdout.flush()
    words = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
    while word := (await words.readline()).decode().strip():
        {"cut": network.cut, "heal": network.heal, "reset": network.reset}[word]()
        sys.stdout.write(f"{word}, {network.lost_segments} segments lost so far\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
