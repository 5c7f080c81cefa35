"""Both ends of the wire in one loop: EngineClient, Core and the simulated engine over a real socket."""

import asyncio
import os
import pickle
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest

from engine_bridge import wire
from engine_bridge.client import Answer, EngineClient, EngineDead, EngineLoading, Submission
from engine_bridge.core import Core
from engine_bridge.engines import Emit, Engine, EngineError, Key
from engine_bridge.engines.sim import create
from engine_bridge.status import EngineRow, EngineState, Field, make_descriptor
from engine_bridge.transport import Channel, ZContext, dealer, make_context, router
from engine_bridge.wire import (
    Abort,
    AbortByClientId,
    Accepted,
    Embed,
    Failure,
    FailureKind,
    FinishReason,
    Generate,
    Hello,
    Output,
    SamplingParams,
    Welcome,
    pack_ids,
    unpack_ids,
)

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


# ---- the handshake ----


def test_an_api_server_that_waits_is_welcomed_when_the_engine_is_loaded() -> None:
    async def test() -> None:
        async with ends("--load-seconds", "0.2") as both:
            client = both.client()
            assert both.row.state is EngineState.LOADING
            with pytest.raises(EngineLoading):
                client.require()
            await until(lambda: client.capabilities is not None, "a Welcome")
            assert both.row.is_ready
            assert both.row.has_been_ready
            assert client.require().task == "generate"
            assert client.epoch == 7

    run(test)


def test_an_api_server_of_another_version_is_rejected_for_good() -> None:
    async def test() -> None:
        async with ends() as both:
            raw = both.raw()
            raw.say(Hello(wire.WIRE_VERSION + 1))
            await until(lambda: raw.messages, "an answer")
            [rejected] = raw.messages
            assert isinstance(rejected, wire.Rejected)
            assert str(wire.WIRE_VERSION + 1) in rejected.message
            raw.say(Generate(1, PROMPT, ENDLESS))
            await until(lambda: len(raw.messages) == 2, "an answer")
            assert isinstance(raw.messages[-1], wire.EngineDown)
            assert both.engine.counts() == (0, 0)

    run(test)


@pytest.mark.parametrize(
    "answer",
    [
        wire.Rejected(99, "the engine core speaks wire version 99, this API server 1"),
        Welcome(99, 1, wire.Capabilities("generate", 100, 100)),
    ],
    ids=["it rejects us", "it welcomes us all the same"],
)
def test_a_core_of_another_version_is_not_asked_again(answer: wire.ToServer) -> None:
    async def test() -> None:
        async with impostor() as (context, address, core):
            changes: list[str | None] = []
            client = EngineClient(context, "api-0.1", on_change=lambda: changes.append(client.rejection))
            client.connect(address)
            await until(lambda: core.heard, "a Hello")
            core.say(answer)
            await until(lambda: client.rejection, "a rejection")
            assert client.rejection is not None
            assert "99" in client.rejection
            assert changes[-1] == client.rejection
            with pytest.raises(EngineDead, match="99"):
                client.require()

    run(test)


class Impostor:
    """A core's socket without a core."""

    def __init__(self, context: ZContext, address: str) -> None:
        self.heard: list[wire.ToCore] = []
        self.messages_heard = 0
        self._identity = b""
        self._channel = Channel(router(context, address), self._on_message)

    def _on_message(self, frames: list[bytes]) -> None:
        self._identity, payload = frames
        self.heard += wire.decode_to_core(payload)
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


# ---- requests ----


def test_a_generation_is_accepted_first_and_an_embedding_only_answered() -> None:
    async def test() -> None:
        async with ends("--tokens-per-step", "2") as both:
            raw = await both.greeted()
            raw.say(Generate(1, PROMPT, SamplingParams(max_tokens=5)))
            await until(lambda: raw.of(1) and raw.of(1)[-1].finish_reason is not None, "the end")  # pyright: ignore[reportAttributeAccessIssue]
            assert raw.messages[1] == Accepted((1,))
            outputs = [message for message in raw.of(1) if isinstance(message, Output)]
            assert [len(unpack_ids(output.new_token_ids)) for output in outputs] == [2, 2, 1]
            assert [output.finish_reason for output in outputs] == [None, None, FinishReason.LENGTH]
        async with ends("--task", "embed") as both:
            raw = await both.greeted()
            raw.say(Embed(1, PROMPT), Embed(2, PROMPT))
            await until(lambda: raw.of(1) and raw.of(2), "both vectors")
            assert not [message for message in raw.messages if isinstance(message, Accepted)]

    run(test)


def test_what_leaves_in_one_turn_is_one_message_and_so_is_a_step() -> None:
    async def test() -> None:
        async with impostor() as (context, address, core):
            client = await core.welcome(context, address)
            before = core.messages_heard
            async with client.open() as one, client.open() as other:
                for submission in (one, other, one):
                    generate(submission, ENDLESS)
                await until(lambda: core.messages_heard > before, "a message")
                assert core.messages_heard == before + 1
                assert len(core.heard) == 4  # the Hello, and three requests
            client.disconnect("the test is over")
        async with ends("--step-ms", "5") as both:
            raw = await both.greeted()
            raw.say(*(Generate(number, PROMPT, SamplingParams(max_tokens=3)) for number in range(10)))
            await until(lambda: len(raw.messages) >= 1 + 1 + 30, "all outputs")
            assert [len(batch) for batch in raw.heard] == [1, 1, 10, 10, 10]  # Welcome, Accepted, three steps

    run(test)


def test_the_same_ids_of_two_api_servers_are_two_requests() -> None:
    async def test() -> None:
        async with ends("--mode", "echo", "--step-ms", "2") as both:
            one, other = await both.greeted(b"api-0.1"), await both.greeted(b"api-1.2")
            one.say(Generate(1, pack_ids([65]), SamplingParams()))
            other.say(Generate(1, pack_ids([66]), SamplingParams()))
            await until(lambda: len(one.of(1)) == 2 and len(other.of(1)) == 2, "both ends")
            texts = [unpack_ids(raw.of(1)[0].new_token_ids) for raw in (one, other)]  # pyright: ignore[reportAttributeAccessIssue]
            assert texts == [[65], [66]]

    run(test)


def test_an_id_used_twice_is_refused_and_the_first_request_goes_on() -> None:
    async def test() -> None:
        async with ends("--step-ms", "5") as both:
            raw = await both.greeted()
            raw.say(Generate(1, PROMPT, SamplingParams(max_tokens=4)))
            await both.counts(1)
            raw.say(Generate(1, PROMPT, SamplingParams(max_tokens=4)))
            await until(lambda: len(raw.of(1)) == 5, "four outputs and a refusal")
            refusals = [message for message in raw.of(1) if isinstance(message, Failure)]
            assert refusals == [Failure(1, FailureKind.INTERNAL, "a request id was used twice")]
            raw.say(Generate(1, PROMPT, SamplingParams(max_tokens=1)))  # it has ended, so the id is free again
            await until(lambda: len(raw.of(1)) == 6, "one more output")

    run(test)


def test_ids_of_a_dead_api_server_are_not_taken_for_its_successors() -> None:
    async def test() -> None:
        async with ends("--step-ms", "2") as both:
            dead = await both.greeted(b"api-0.1")
            dead.say(Generate(1, PROMPT, ENDLESS))
            await both.counts(1)
            dead.close()
            successor = await both.greeted(b"api-0.2")
            successor.say(Abort((1,)))
            successor.say(Generate(1, PROMPT, SamplingParams(max_tokens=2)))
            await until(lambda: len(successor.of(1)) == 2, "its own two outputs")
            await both.counts(0)
            assert len(successor.of(1)) == 2

    run(test)


def test_prompts_that_are_no_int32_are_refused_before_the_engine() -> None:
    async def test() -> None:
        async with ends() as both:
            raw = await both.greeted()
            raw.say(Generate(1, b"abc", ENDLESS), Embed(2, b"abcde"))
            await until(lambda: raw.of(1) and raw.of(2), "two refusals")
            assert [message.kind for message in raw.of(1) + raw.of(2) if isinstance(message, Failure)] == [
                FailureKind.INVALID
            ] * 2

    run(test)


def test_one_request_that_cannot_be_encoded_fails_alone() -> None:
    async def test() -> None:
        async with ends() as both:
            client = await both.welcomed()
            async with client.open() as bad, client.open() as good:
                generate(bad, ENDLESS, client_request_id="\ud800")
                generate(good, SamplingParams(max_tokens=2))
                [failure] = await bad.receive()
                assert isinstance(failure, Failure)
                assert failure.kind is FailureKind.INVALID
                assert len(await collect(good)) == 2

    run(test)


# ---- aborts ----


def test_leaving_the_block_aborts_what_has_not_ended() -> None:
    async def test() -> None:
        async with ends("--max-running", "2") as both:
            client = await both.welcomed()
            async with client.open() as submission:
                for _ in range(5):
                    generate(submission, ENDLESS)
                await submission.accepted()
                await both.counts(2, 3)
            assert client.in_flight == 0
            await both.counts(0)

    run(test)


def test_what_is_given_up_in_the_turn_it_was_submitted_in_never_starts() -> None:
    async def test() -> None:
        async with ends() as both:
            client = await both.welcomed()
            async with client.open() as submission:
                generate(submission, ENDLESS)
            async with client.open() as submission:
                generate(submission, SamplingParams(max_tokens=1))
                await collect(submission)
            assert both.row.get(Field.REQUESTS) == 1
            assert both.engine.counts() == (0, 0)

    run(test)


def test_one_of_many_can_be_aborted() -> None:
    async def test() -> None:
        async with ends("--step-ms", "2") as both:
            client = await both.welcomed()
            async with client.open() as submission:
                first = generate(submission, ENDLESS)
                generate(submission, ENDLESS)
                await both.counts(2)
                submission.abort(first)
                await both.counts(1)
                submission.take()
                assert all(answer.request_id != first for answer in await submission.receive())

    run(test)


def test_unknown_ids_and_those_of_others_are_no_error() -> None:
    async def test() -> None:
        async with ends("--step-ms", "2") as both:
            one, other = await both.greeted(b"api-0.1"), await both.greeted(b"api-1.2")
            one.say(Generate(1, PROMPT, ENDLESS))
            await both.counts(1)
            other.say(Abort((1, 2, 3)), AbortByClientId("nobody's"))
            other.say(Generate(9, PROMPT, SamplingParams(max_tokens=1)))
            await until(lambda: other.of(9), "an answer after the aborts")
            assert both.engine.counts()[0] == 1
            one.say(Abort((1,)))
            await both.counts(0)

    run(test)


def test_an_api_server_that_is_gone_is_noticed_and_its_requests_aborted() -> None:
    async def test() -> None:
        async with ends("--step-ms", "10000", "--max-running", "1") as both:  # no output that would tell
            raw = await both.greeted()
            raw.say(Generate(1, PROMPT, ENDLESS), Generate(2, PROMPT, ENDLESS, "client-2"))
            await both.counts(1, 1)
            began = asyncio.get_running_loop().time()
            raw.close()
            await both.counts(0)
            assert asyncio.get_running_loop().time() - began < 1

    run(test)


def test_an_abort_by_client_id_reaches_every_api_server() -> None:
    async def test() -> None:
        async with ends("--step-ms", "5") as both:
            one, other, third = [await both.welcomed(f"api-{slot}.1") for slot in range(3)]
            async with one.open() as of_one, other.open() as of_other, one.open() as bystander:
                generate(of_one, ENDLESS, "wanted")
                generate(of_one, ENDLESS, "wanted")
                generate(of_other, ENDLESS, "wanted")
                generate(bystander, ENDLESS, "another")
                await both.counts(4)
                third.abort_by_client_id("wanted")
                ended = await ends_of(of_one, 2) + await ends_of(of_other, 1)
                assert {end.kind for end in ended} == {FailureKind.ABORTED}
                await both.counts(1)
                bystander.take()
                assert isinstance((await bystander.receive())[0], Output)
                assert (one.in_flight, other.in_flight) == (1, 0)

    run(test)


async def ends_of(submission: Submission, count: int) -> list[Failure]:
    failures: list[Failure] = []
    while len(failures) < count:
        failures += [answer for answer in await submission.receive() if isinstance(answer, Failure)]
    return failures


def test_an_abort_by_client_id_that_crosses_its_request_in_one_message_ends_it() -> None:
    async def test() -> None:
        async with ends() as both:
            raw = await both.greeted()
            raw.say(Generate(1, PROMPT, ENDLESS, "wanted"), AbortByClientId("wanted"))
            await until(lambda: raw.of(1), "its end")
            assert raw.of(1) == [Failure(1, FailureKind.ABORTED, "aborted on request")]
            assert both.engine.counts() == (0, 0)

    run(test)


# ---- strangers ----


JUNK = [
    (b"",),
    (b"GET / HTTP/1.1\r\n\r\n",),
    (pickle.dumps({"os": "system"}),),
    (wire.encode(["g", 1]),),
    (wire.encode([["g", 1]]),),
    (wire.encode([["g", "one", PROMPT, []]]),),
    (wire.encode([["nonsense", 1]]),),
    (wire.encode({"g": 1}),),
    (wire.encode([Welcome(1, 1, wire.Capabilities("generate", 1, 1))]),),
    (b"\x91" * 50_000,),
    (wire.encode([["a", [2**63 - 1, -1, "x"]]]),),
    (wire.encode([Hello(1)]), b"a second frame"),
    (wire.encode([["c", "\ud800".encode("utf-8", "surrogatepass")]]),),
]


def test_junk_is_dropped_and_counted_and_harms_nobody() -> None:
    async def test() -> None:
        async with ends("--step-ms", "2") as both:
            client = await both.welcomed()
            stranger = both.raw(b"\x01\xff\xfe")
            async with client.open() as submission:
                generate(submission, SamplingParams(max_tokens=50, ignore_eos=True))
                for frames in JUNK:
                    stranger.say_bytes(*frames)
                await until(lambda: both.row.get(Field.JUNK) == len(JUNK), "every piece of junk counted")
                tokens = [unpack_ids(answer.new_token_ids) for answer in await collect(submission)]  # pyright: ignore[reportAttributeAccessIssue]
                assert sum(map(len, tokens)) == 50
            assert stranger.heard == []
            assert both.row.state is EngineState.READY

    run(test)


def test_who_has_not_shaken_hands_must_begin_anew() -> None:
    async def test() -> None:
        async with ends() as both:
            raw = both.raw()
            raw.say(Generate(1, PROMPT, ENDLESS))
            await until(lambda: raw.messages, "an answer")
            assert isinstance(raw.messages[0], wire.EngineDown)
            assert both.engine.counts() == (0, 0)
            raw.say(Hello(wire.WIRE_VERSION))
            raw.say(Generate(2, PROMPT, SamplingParams(max_tokens=1)))
            await until(lambda: raw.of(2), "a served request")

    run(test)


def test_a_client_that_connects_anew_is_served_and_its_old_requests_are_gone() -> None:
    async def test() -> None:
        async with ends("--step-ms", "2") as both:
            client = await both.welcomed()
            async with client.open() as submission:
                generate(submission, ENDLESS)
                await both.counts(1)
                client.connect(both.address)  # the same identity at once, before the old connection's end is seen
                with pytest.raises(EngineDead):
                    await collect(submission)
            await until(lambda: client.capabilities, "a Welcome")
            await both.counts(0)
            async with client.open() as submission:
                generate(submission, SamplingParams(max_tokens=2))
                assert len(await collect(submission)) == 2

    run(test)


def test_a_core_that_sends_junk_is_left() -> None:
    async def test() -> None:
        async with impostor() as (context, address, core):
            client = await core.welcome(context, address)
            async with client.open() as submission:
                generate(submission, ENDLESS)
                core.say_bytes(b"\xc1 junk")
                with pytest.raises(EngineDead):
                    await submission.receive()
            assert client.in_flight == 0

    run(test)


# ---- the end ----


def test_when_the_core_stops_everybody_who_waits_is_told() -> None:
    async def test() -> None:
        async with ends("--step-ms", "5") as both:
            clients = [await both.welcomed(f"api-{slot}.1") for slot in range(2)]
            async with clients[0].open() as one, clients[1].open() as other:
                for submission in (one, other):
                    generate(submission, ENDLESS)
                    await submission.accepted()
                await both.stop()
                for submission in (one, other):
                    [*_, end] = await collect(submission)
                    assert isinstance(end, Failure)
                    assert end.kind is FailureKind.UNAVAILABLE
                for client in clients:
                    await until(lambda client=client: client.down_reason, "the last word")
                    with pytest.raises(EngineDead, match="shutting down"):
                        client.open()
            assert both.row.state is EngineState.STOPPING

    run(test)


def test_a_core_can_be_stopped_while_it_loads() -> None:
    async def test() -> None:
        async with ends("--load-seconds", "60") as both:
            await asyncio.sleep(0)
            began = asyncio.get_running_loop().time()
            await both.stop()
            assert asyncio.get_running_loop().time() - began < 1
            assert not both.row.has_been_ready

    run(test)


def test_a_retired_client_fails_who_waits_and_its_aborts_still_leave() -> None:
    async def test() -> None:
        async with ends("--step-ms", "5") as both:
            client = await both.welcomed()
            async with client.open() as submission:
                generate(submission, ENDLESS)
                await both.counts(1)
                client.retire("the server is shutting down")
                with pytest.raises(EngineDead, match="shutting down"):
                    await collect(submission)
                late = Submission(client)
                generate(late, ENDLESS)
                with pytest.raises(EngineDead, match="shutting down"):
                    await late.receive()
            await both.counts(0)

    run(test)


def test_the_row_tells_what_the_engine_does() -> None:
    async def test() -> None:
        async with ends("--step-ms", "5", "--max-running", "2") as both:
            client = await both.welcomed()
            async with client.open() as submission:
                for _ in range(3):
                    generate(submission, ENDLESS)
                await until(lambda: (both.row.get(Field.RUNNING), both.row.get(Field.WAITING)) == (2, 1), "the counts")
                assert both.row.seconds_since_beat < 1
                await until(lambda: both.row.get(Field.OUTPUT_TOKENS) > 4, "tokens")
            await until(lambda: both.row.get(Field.RUNNING) + both.row.get(Field.WAITING) == 0, "an idle engine")

    run(test)


# ---- engines that break their promises ----


class Broken:
    """An engine that fails where it is told."""

    def __init__(self, where: str) -> None:
        self._where = where

    async def start(self, emit: Emit) -> wire.Capabilities:
        if self._where == "start":
            raise EngineError("the model is not there")
        return wire.Capabilities("generate", 100, 100)

    def submit(self, requests: Sequence[tuple[Key, wire.Request]]) -> None:
        raise RuntimeError("a bug in the engine")

    def abort(self, keys: Sequence[Key]) -> None:
        pass

    def counts(self) -> tuple[int, int]:
        return 0, 0

    async def close(self) -> None:
        pass


def test_an_engine_that_raises_in_submit_fails_those_requests_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with ends(engine=Broken("submit")) as both:
            client = await both.welcomed()
            for _ in range(2):
                async with client.open() as submission:
                    generate(submission, ENDLESS)
                    [*_, end] = await collect(submission)
                    assert isinstance(end, Failure)
                    assert end.kind is FailureKind.INTERNAL
                    assert "bug" not in end.message

    run(test)
    assert "a bug in the engine" in caplog.text


def test_an_engine_that_cannot_start_ends_the_core_and_whoever_waits_is_told() -> None:
    async def test() -> None:
        async with ends(engine=Broken("start")) as both:
            client = both.client()
            with pytest.raises(EngineError, match="the model is not there"):
                await both.running
            both.running = asyncio.create_task(asyncio.sleep(0))  # there is no core to stop any more
            assert client.capabilities is None

    run(test)


def test_an_address_that_cannot_be_bound_is_one_line(tmp_path: Path) -> None:
    async def test() -> None:
        async with ends() as both:
            other = Core(Broken("never"), both.row, epoch=1)
            with pytest.raises(EngineError, match="cannot bind"):
                await other.run(both.context, f"ipc://{tmp_path}/no/such/directory")

    run(test)
