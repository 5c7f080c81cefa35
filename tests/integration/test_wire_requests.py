"""EngineClient, Core and the simulated engine in one loop: the handshake and the requests."""

import msgspec
import pytest

from engine_bridge import wire
from engine_bridge.client import EngineClient, EngineDead, EngineLoading
from engine_bridge.status import EngineState
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


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_more_logprobs_than_the_engine_gives_are_refused_before_it(name: str) -> None:
    async def test() -> None:
        async with ends() as both:
            raw = await both.greeted()
            raw.say(Generate(1, PROMPT, msgspec.structs.replace(ENDLESS, **{name: 2**31 - 1})))
            await until(lambda: raw.of(1), "a refusal")
            [refusal] = raw.of(1)
            assert isinstance(refusal, Failure)
            assert refusal.kind is FailureKind.INVALID

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
