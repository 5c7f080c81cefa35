"""Both ends of the wire in one loop, or one end and an impostor, over a real socket."""

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing

from engine_bridge import wire
from engine_bridge.client import EngineClient
from engine_bridge.core import Core
from engine_bridge.engines import Engine
from engine_bridge.engines.sim import create
from engine_bridge.status import EngineRow, make_descriptor
from engine_bridge.submission import Answer, Submission
from engine_bridge.transport import Channel, ZContext, address_of, dealer, make_context, router
from engine_bridge.wire import Failure, Generate, Hello, Output, SamplingParams, Welcome, pack_ids

DEADLINE_SECONDS = 5.0
PROMPT = pack_ids(list(b"Hello"))
ENDLESS = SamplingParams(max_tokens=10_000, ignore_eos=True)


async def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Turn the loop until it is so."""
    deadline = asyncio.get_running_loop().time() + DEADLINE_SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"{what} did not come true"
        await asyncio.sleep(0.002)


class Raw:
    """An API server's socket without the client: says what it likes, keeps what it hears."""

    def __init__(self, context: ZContext, address: str, identity: bytes) -> None:
        self.heard: list[list[wire.ToServer]] = []
        self._channel = Channel(dealer(context, address, identity), self._on_message)

    def _on_message(self, frames: list[bytes]) -> None:
        messages = wire.decode_to_server(frames[-1])
        if messages:  # an empty one only asks whether we live
            self.heard.append(messages)

    def say(self, *messages: wire.ToCore) -> None:
        self._channel.send([wire.encode(messages)])

    def say_bytes(self, *frames: bytes) -> None:
        self._channel.send(list(frames))

    @property
    def messages(self) -> list[wire.ToServer]:
        return [message for batch in self.heard for message in batch]

    def of(self, request_id: int) -> list[wire.ToServer]:
        """What was said of this request."""
        return [
            message
            for message in self.messages
            if isinstance(message, Output | Failure | wire.Embedding) and message.request_id == request_id
        ]

    def outputs_of(self, request_id: int) -> list[Output]:
        return [message for message in self.of(request_id) if isinstance(message, Output)]

    async def shake_hands(self) -> None:
        self.say(Hello(wire.WIRE_VERSION))
        await until(lambda: any(isinstance(message, Welcome) for message in self.messages), "a Welcome")

    def close(self) -> None:
        self._channel.close()


class Ends:
    """A running core, and whoever talks to it."""

    def __init__(self, stack: AsyncExitStack, context: ZContext, address: str, engine: Engine, row: EngineRow) -> None:
        self._stack = stack
        self.context = context
        self.address = address
        self.engine = engine
        self.row = row
        self.core = Core(engine, row, epoch=7)
        self.running = asyncio.create_task(self.core.run(context, address))

    def client(self, identity: str = "api-0.1") -> EngineClient:
        """Connected; its Welcome comes later."""
        client = EngineClient(self.context, identity)
        self._stack.callback(client.disconnect, "the test is over")
        client.connect(self.address)
        return client

    async def welcomed(self, identity: str = "api-0.1") -> EngineClient:
        client = self.client(identity)
        await until(lambda: client.capabilities is not None, "a Welcome")
        return client

    def raw(self, identity: bytes = b"raw-0.1") -> Raw:
        return self._stack.enter_context(closing(Raw(self.context, self.address, identity)))

    async def greeted(self, identity: bytes = b"raw-0.1") -> Raw:
        raw = self.raw(identity)
        await raw.shake_hands()
        return raw

    async def counts(self, running: int, waiting: int = 0) -> None:
        await until(lambda: self.engine.counts() == (running, waiting), f"{running} running, {waiting} waiting")

    async def stop(self) -> None:
        self.core.stop()
        await asyncio.wait_for(self.running, DEADLINE_SECONDS)


@asynccontextmanager
async def ends(*arguments: str, engine: Engine | None = None) -> AsyncGenerator[Ends]:
    """`arguments` are the sim's. Everything is stopped at the end, and was stopped properly."""
    with tempfile.TemporaryDirectory(prefix="wire-") as directory:  # pytest's own are too long for a socket's path
        descriptor = make_descriptor()
        row = EngineRow.attach(descriptor)
        os.close(descriptor)
        context = make_context()
        async with AsyncExitStack() as stack:
            stack.callback(context.term)
            both = Ends(stack, context, f"ipc://{directory}/core", engine or create("sim", list(arguments)), row)
            stack.push_async_callback(both.stop)
            yield both


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def with_deadline() -> None:
        await asyncio.wait_for(test(), 4 * DEADLINE_SECONDS)

    asyncio.run(with_deadline())


def generate(submission: Submission, params: SamplingParams, client_request_id: str | None = None) -> int:
    """Submit one; returns its id."""
    request_id = submission.new_id()
    submission.submit([Generate(request_id, PROMPT, params, client_request_id)])
    return request_id


async def collect(submission: Submission) -> list[Answer]:
    """Every answer of a submission with one request, to its end."""
    answers: list[Answer] = []
    while not answers or (isinstance(answers[-1], Output) and answers[-1].finish_reason is None):
        answers += await submission.receive()
    return answers


class Impostor:
    """A core's socket without a core."""

    def __init__(self, context: ZContext, address: str) -> None:
        self.heard: list[wire.ToCore] = []
        self.batches: list[list[wire.ToCore]] = []
        self.messages_heard = 0
        self._identity = b""
        socket = router(context, address)
        self.address = address_of(socket)
        self._channel = Channel(socket, self._on_message)

    def _on_message(self, frames: list[bytes]) -> None:
        self._identity, payload = frames
        self.batches.append(wire.decode_to_core(payload))
        self.heard += self.batches[-1]
        self.messages_heard += 1

    def say(self, *messages: wire.ToServer) -> None:
        self.say_bytes(wire.encode(messages))

    def say_bytes(self, payload: bytes) -> None:
        self._channel.send([self._identity, payload])

    async def welcome(self, context: ZContext, address: str) -> EngineClient:
        """A client that believes in it."""
        client = EngineClient(context, "api-0.1")
        client.connect(address)
        await until(lambda: self.heard, "a Hello")
        self.say(Welcome(wire.WIRE_VERSION, 1, wire.Capabilities("generate", 100, 100)))
        await until(lambda: client.capabilities, "the Welcome")
        return client

    def close(self) -> None:
        self._channel.close()


@asynccontextmanager
async def impostor() -> AsyncGenerator[tuple[ZContext, str, Impostor]]:
    with tempfile.TemporaryDirectory(prefix="wire-") as directory:
        context = make_context()
        address = f"ipc://{directory}/core"
        with closing(Impostor(context, address)) as core:
            yield context, address, core
        context.destroy()
