"""Whatever bytes arrive at an end of the wire, also whole messages with any values: the end lives, and serves."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine_bridge import wire
from engine_bridge.client import EngineDead
from engine_bridge.wire import SamplingParams
from tests.ends import ENDLESS, collect, ends, generate, impostor, run, until
from tests.wire.test_evolution import to_core, to_server


def damaged(messages: list[Any], seed: int) -> bytes:
    """The same, encoded, with a few bytes changed."""
    random, data = Random(seed), bytearray(wire.encode(messages))
    for _ in range(random.randrange(1, 4)):
        data[random.randrange(len(data))] = random.randrange(256)
    return bytes(data)


def payloads(messages: st.SearchStrategy[Any]) -> st.SearchStrategy[list[bytes]]:
    batches = st.lists(messages, min_size=1, max_size=4)
    one = st.one_of(
        batches.map(wire.encode), st.builds(damaged, batches, st.integers(0, 2**32)), st.binary(max_size=60)
    )
    return st.lists(one, max_size=20)


@contextmanager
def no_fault_in_the_loop() -> Iterator[None]:
    """What a callback lets out goes to the loop's handler, and would be lost there."""
    faults: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    yield
    assert faults == []


@given(sent=payloads(to_core), greets=st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_core_serves_others_whatever_it_is_sent(sent: list[bytes], greets: bool) -> None:
    async def test() -> None:
        async with ends("--step-ms", "0") as both:
            client = await both.welcomed()
            with no_fault_in_the_loop():
                stranger = await both.greeted() if greets else both.raw()
                for payload in sent:
                    stranger.say_bytes(payload)
                stranger.close()
                await both.counts(0)
                async with client.open() as submission:
                    generate(submission, SamplingParams(max_tokens=3, ignore_eos=True))
                    assert await collect(submission)
                assert not both.running.done()

    run(test)


@given(sent=payloads(to_server))
@settings(max_examples=25, deadline=None)
def test_an_api_server_that_is_sent_anything_waits_for_nobody_and_can_connect_anew(sent: list[bytes]) -> None:
    async def test() -> None:
        async with impostor() as (context, address, core):
            client = await core.welcome(context, address)
            with no_fault_in_the_loop():
                async with client.open() as submission:
                    generate(submission, ENDLESS)
                    before = core.messages_heard
                    await until(lambda: core.messages_heard > before, "the request")
                    for payload in sent:
                        core.say_bytes(payload)
                    core.say(wire.EngineDown("the test is over"))
                    try:
                        while True:
                            await submission.receive()
                    except EngineDead:
                        pass
                assert client.in_flight == 0
            client.disconnect("the test is over")

    run(test)
