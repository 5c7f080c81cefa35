"""A core on a TCP port with keys, and API servers that reach it over a network of ours, all in one loop."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory

from engine_bridge import wire
from engine_bridge.address import TcpAddress
from engine_bridge.client import EngineClient
from engine_bridge.core import Core
from engine_bridge.engines import Engine
from engine_bridge.engines.sim import create
from engine_bridge.gate import Gate
from engine_bridge.keys import AllowList, make_keys, read_client_keys, read_server_keys
from engine_bridge.link import Link
from engine_bridge.status import EngineRow, make_descriptor
from engine_bridge.transport import Channel, ClientKeys, ZContext, make_context, remote_dealer
from tests.ends import DEADLINE_SECONDS, Raw, until
from tests.forwarder import Forwarder, Weather, forwarder

SILENCE_SECONDS = 1.0
PATIENT_SECONDS = 10.0  # where nothing is to be silent, on a machine that is busy with other tests


class RemoteCore:
    """One incarnation of a core."""

    def __init__(
        self,
        context: ZContext,
        keys: Path | None,
        address: str,
        core: Callable[[Engine, EngineRow], Core],
        *arguments: str,
    ) -> None:
        descriptor = make_descriptor()
        self.row = EngineRow.attach(descriptor)
        os.close(descriptor)
        self.engine: Engine = create("sim", list(arguments))
        self.core = core(self.engine, self.row)
        server_keys = read_server_keys(keys) if keys is not None else None
        allowed = AllowList(keys / "clients") if keys is not None else None
        self.running = asyncio.create_task(self.core.run(context, address, server_keys, allowed))

    async def address(self) -> TcpAddress:
        await until(lambda: self.core.address or self.running.done(), "a bound socket")
        assert self.core.address is not None, self.running.result()
        return TcpAddress.parse(self.core.address)

    async def counts(self, running: int) -> None:
        await until(lambda: self.engine.counts() == (running, 0), f"{running} running")

    async def stop(self) -> None:
        self.core.stop()
        await asyncio.wait_for(self.running, DEADLINE_SECONDS)


class RemoteRaw(Raw):
    """An API server's socket without the client, over TCP. `ended` is why its connection ended."""

    def __init__(self, context: ZContext, address: str, identity: bytes, keys: ClientKeys | None) -> None:
        self.heard: list[list[wire.ToServer]] = []
        self.ended: list[str] = []
        socket, self._watch = remote_dealer(
            context, address, identity, keys, silence_seconds=PATIENT_SECONDS, on_end=self.ended.append
        )
        self._channel = Channel(socket, self._on_message)

    def close(self) -> None:
        self._watch.close()
        super().close()


class Remote:
    """The core's context, its keys, and the API servers."""

    def __init__(self, stack: AsyncExitStack, directory: Path, silence_seconds: float) -> None:
        self._stack = stack
        self.silence_seconds = silence_seconds
        self.context = make_context()
        self.client_context = make_context()  # another process's
        self.directory = directory
        make_keys(directory, ["one", "two"])
        self.gate = Gate(self.context, AllowList(directory / "engine" / "clients"))

    def core(
        self, *arguments: str, address: str = "tcp://127.0.0.1:0", epoch: int = 1, keys: bool = True
    ) -> RemoteCore:
        def make(engine: Engine, row: EngineRow) -> Core:
            return Core(engine, row, epoch=epoch, silence_seconds=self.silence_seconds)

        core = RemoteCore(self.context, self.directory / "engine" if keys else None, address, make, *arguments)
        self._stack.push_async_callback(core.stop)
        return core

    def keys(self, name: str = "one") -> ClientKeys:
        return read_client_keys(self.directory / name)

    def client(
        self, address: str, keys: ClientKeys | None, identity: str = "pool/api-0.1"
    ) -> tuple[EngineClient, Link]:
        """With a link that ticks until the test is over."""
        client = EngineClient(self.client_context, identity)
        link = Link(client, address, keys, self.silence_seconds)
        ticking = asyncio.create_task(_tick(link))
        self._stack.callback(client.disconnect, "the test is over")
        self._stack.callback(ticking.cancel)
        return client, link

    async def welcomed(self, address: str, identity: str = "pool/api-0.1") -> EngineClient:
        client, _ = self.client(address, self.keys(), identity)
        await until(lambda: client.capabilities is not None, "a Welcome")
        return client

    def raw(self, address: str, keys: ClientKeys | None, identity: bytes = b"raw/api-0.1") -> "RemoteRaw":
        return self._stack.enter_context(closing(RemoteRaw(self.client_context, address, identity, keys)))

    async def network(self, core: RemoteCore, weather: Weather | None = None) -> Forwarder:
        address = await core.address()
        return await self._stack.enter_async_context(forwarder((address.host, address.port), weather))


async def _tick(link: Link) -> None:
    while True:
        link.tick()
        await asyncio.sleep(0.02)


@asynccontextmanager
async def remote(silence_seconds: float) -> AsyncGenerator[Remote]:
    with TemporaryDirectory(prefix="keys-") as directory:
        async with AsyncExitStack() as stack:
            ends = Remote(stack, Path(directory), silence_seconds)
            stack.callback(ends.context.term)
            stack.callback(ends.client_context.term)
            stack.callback(ends.gate.close)
            yield ends


def run_remote(test: Callable[[Remote], Awaitable[None]], silence_seconds: float = PATIENT_SECONDS) -> None:
    async def with_deadline() -> None:
        async with asyncio.timeout(6 * DEADLINE_SECONDS), remote(silence_seconds) as ends:
            await test(ends)

    asyncio.run(with_deadline())
