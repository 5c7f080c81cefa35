"""EngineClient, Core and the simulated engine in one loop: the handshake, requests, the end."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine_bridge import wire
from engine_bridge.client import EngineClient, EngineDead, EngineLoading
from engine_bridge.core import Core
from engine_bridge.engines import Emit, EngineError, Key
from engine_bridge.status import EngineRow, EngineState, Field, Figures, make_descriptor
from engine_bridge.submission import Submission
from engine_bridge.wire import (
    Abort,
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
from tests.ends import ENDLESS, PROMPT, collect, ends, generate, impostor, run, until

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


# ---- requests ----


def test_a_generation_is_accepted_first_and_an_embedding_only_answered() -> None:
    async def test() -> None:
        async with ends("--tokens-per-step", "2") as both:
            raw = await both.greeted()
            raw.say(Generate(1, PROMPT, SamplingParams(max_tokens=5)))
            await until(lambda: any(output.finish_reason is not None for output in raw.outputs_of(1)), "the end")
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
            texts = [unpack_ids(raw.outputs_of(1)[0].new_token_ids) for raw in (one, other)]
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

    async def admin(self, verb: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        raise RuntimeError("a bug in the engine")

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


def test_the_row_tells_an_idle_engine_from_one_that_is_stuck() -> None:
    async def test() -> None:
        async with ends("--fault", f"stall:{unpack_ids(PROMPT)[0]}:2") as both:
            client, row = await both.welcomed(), both.row
            idle = row.last_output
            await until(lambda: row.last_output > idle, "an engine that has nothing to do")
            async with client.open() as submission:
                generate(submission, ENDLESS)
                await until(lambda: row.get(Field.OUTPUT_TOKENS) == 2, "the last output")
                stuck, beat = row.last_output, row.heartbeat
                await until(lambda: row.heartbeat > beat + 300_000_000, "a loop that turns")
                assert row.last_output == stuck
                both.core._emit(())  # as an engine that reads a long prompt
                assert row.last_output > stuck
                stuck = row.last_output
            await until(lambda: row.last_output > stuck, "an engine whose work was aborted")

    run(test)


def test_a_new_incarnation_begins_with_a_clean_row_and_goes_on_counting() -> None:
    row = EngineRow.attach(make_descriptor())
    row.begin(1)
    row.add(Field.REQUESTS, 3)
    row.stage = "weights"
    row.beat(2, 1)
    row.mark_ready()
    row.mark_dead()
    assert (row.get(Field.RUNNING), row.get(Field.WAITING)) == (0, 0)
    assert row.has_been_ready
    row.begin(2)
    assert (row.state, row.get(Field.EPOCH), row.has_been_ready, row.stage) == (EngineState.LOADING, 2, False, "")
    assert row.get(Field.REQUESTS) == 3
    assert row.seconds_since_beat < 1


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


class Mortal(Broken):
    """An engine with processes of its own, which tells its figures and dies when it is told."""

    def __init__(self) -> None:
        super().__init__("submit")
        self.dying = asyncio.Event()

    def submit(self, requests: Sequence[tuple[Key, wire.Request]]) -> None:
        pass

    def figures(self) -> Figures:
        return Figures(
            "warming up", tokens_used=1, token_capacity=2, tokens_per_second=3, prompt_tokens=4, cached_tokens=5
        )

    async def failure(self) -> str:
        await self.dying.wait()
        return "its scheduler was killed"


def test_an_engine_that_cannot_go_on_ends_the_core_and_every_request() -> None:
    async def test() -> None:
        engine = Mortal()
        async with ends(engine=engine) as both:
            client = await both.welcomed()
            async with client.open() as submission:
                generate(submission, ENDLESS)
                await submission.accepted()
                engine.dying.set()
                [*_, end] = await collect(submission)
                assert isinstance(end, Failure)
                assert end.message == "the engine failed: its scheduler was killed"
            with pytest.raises(EngineError, match="its scheduler was killed"):
                await both.running
            both.running = asyncio.create_task(asyncio.sleep(0))  # there is no core to stop any more

    run(test)


def test_an_engines_figures_are_on_its_row() -> None:
    async def test() -> None:
        async with ends(engine=Mortal()) as both:
            await both.welcomed()
            await until(lambda: both.row.stage == "warming up", "the figures")
            fields = (Field.TOKENS_USED, Field.TOKEN_CAPACITY, Field.TOKENS_PER_SECOND, Field.PROMPT_TOKENS)
            assert [both.row.get(field) for field in (*fields, Field.CACHED_TOKENS)] == [1, 2, 3, 4, 5]

    run(test)
