"""EngineClient, Core and the simulated engine in one loop: aborts of every kind, and who has no business here."""

import asyncio
import logging
import pickle

import pytest

from engine_bridge import transport, wire
from engine_bridge.client import AdminFailed, EngineDead
from engine_bridge.status import EngineState, Field
from engine_bridge.submission import Answer, Submission
from engine_bridge.wire import (
    Abort,
    AbortByClientId,
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


def test_everything_of_every_api_server_can_be_ended_at_once() -> None:
    async def test() -> None:
        async with ends("--max-running", "2") as both:
            first, second = await both.welcomed(), await both.welcomed("api-1.1")
            async with first.open() as one, second.open() as other:
                for submission in (one, one, other, other):
                    generate(submission, ENDLESS)
                await one.accepted()
                await other.accepted()
                assert await first.admin(wire.ABORT_ALL, {}) == {"aborted": 4}
                for submission in (one, other):
                    answers: list[Answer] = []
                    while sum(isinstance(answer, Failure) for answer in answers) < 2:
                        answers += await submission.receive()
                    kinds = {answer.kind for answer in answers if isinstance(answer, Failure)}
                    assert kinds == {FailureKind.ABORTED}
            await both.counts(0)
            assert await second.admin(wire.ABORT_ALL, {}) == {"aborted": 0}

    run(test)


def test_a_verb_that_the_engine_has_not_got_is_refused_and_one_that_it_cannot_do_now_too() -> None:
    async def test() -> None:
        async with ends("--step-ms", "2") as both:
            client = await both.welcomed()
            with pytest.raises(AdminFailed, match="cannot do 'dance'") as raised:
                await client.admin("dance", {})
            assert raised.value.failure.kind is FailureKind.INVALID
            async with client.open() as submission:
                generate(submission, ENDLESS)
                await submission.accepted()
                with pytest.raises(AdminFailed, match="nothing is running"):
                    await client.admin("flush_cache", {})
            await both.counts(0)
            assert await client.admin("flush_cache", {}) == {}

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


def test_an_abort_by_client_id_reaches_one_owners_requests_or_everybodys() -> None:
    async def test() -> None:
        async with ends("--max-running", "20") as both:
            raw, other = await both.greeted(b"one"), await both.greeted(b"other")
            owners = ("alice", "bob", "", "alice")
            raw.say(*(Generate(n, PROMPT, ENDLESS, "same", owner=owner) for n, owner in enumerate(owners)))
            other.say(Generate(9, PROMPT, ENDLESS, "same", owner="alice"))
            await both.counts(5)
            raw.say(AbortByClientId("same", "carol"), AbortByClientId("other", "alice"), AbortByClientId("same", "bob"))
            await both.counts(4)
            await until(lambda: Failure in map(type, raw.of(1)), "its end")
            raw.say(AbortByClientId("same", ""))
            await both.counts(3)
            await until(lambda: Failure in map(type, raw.of(2)), "its end")
            other.say(AbortByClientId("same", "alice"))
            await both.counts(0)
            raw.say(*(Generate(n, PROMPT, ENDLESS, "same", owner=owner) for n, owner in enumerate(owners, 20)))
            await both.counts(4)
            other.say(AbortByClientId("same"))
            await both.counts(0)

    run(test)


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
                outputs = [answer for answer in await collect(submission) if isinstance(answer, Output)]
                tokens = [unpack_ids(output.new_token_ids) for output in outputs]
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


def test_an_api_server_that_stood_still_for_too_long_is_told_that_its_requests_have_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transport, "_HIGH_WATER_MARK", 4)
    caplog.set_level(logging.INFO, "engine_bridge.core")

    async def test() -> None:
        async with ends("--tokens-per-step", "1000", "--max-model-len", "100000000") as both:
            with transport.dealer(both.context, both.address, b"raw-0.1") as socket:
                await until(lambda: both.row.is_ready, "the engine")
                endless = SamplingParams(max_tokens=90_000_000, ignore_eos=True)
                socket.send(wire.encode([Hello(wire.WIRE_VERSION), Generate(1, PROMPT, endless)]))
                # Nobody reads.
                await until(lambda: "raw-0.1 is gone; aborting its 1 requests" in caplog.text, "the core to give it up")
                await both.counts(0)
                messages: list[wire.ToServer] = []

                def reads_the_last_word() -> bool:
                    while socket.poll(0):
                        messages.extend(wire.decode_to_server(socket.recv()))
                    return any(isinstance(message, wire.EngineDown) for message in messages)

                await until(reads_the_last_word, "the last word")
                assert not any(
                    isinstance(message, Output) and message.finish_reason is not None for message in messages
                )

    run(test)


def test_what_a_slow_reader_left_comes_in_parts_and_others_have_their_turns_between_them() -> None:
    async def test() -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with impostor() as (context, address, core):
            client = await core.welcome(context, address)
            async with client.open() as submission:
                request_id = generate(submission, ENDLESS)
                end = Output(request_id, pack_ids([7] * 5000), FinishReason.LENGTH)
                core.say(wire.Accepted((request_id,)), end)
                await until(lambda: client.in_flight == 0, "the answer")
                beside = asyncio.create_task(other())
                parts: list[int] = []
                before = turns
                while sum(parts) < 5000:
                    [answer] = await submission.receive()
                    assert isinstance(answer, Output)
                    parts.append(len(unpack_ids(answer.new_token_ids)))
                    assert (answer.finish_reason is None) == (sum(parts) < 5000)
                assert max(parts) <= 200
                assert turns - before >= len(parts) - 1
                beside.cancel()
                await asyncio.gather(beside, return_exceptions=True)

    run(test)


def test_what_stands_behind_the_last_word_of_a_connection_is_not_heeded() -> None:
    async def test() -> None:
        async with impostor() as (context, address, core):
            client = await core.welcome(context, address)
            core.say(
                wire.EngineDown("begin anew"),
                wire.Welcome(wire.WIRE_VERSION, 2, wire.Capabilities("generate", 100, 100)),
            )
            await until(lambda: client.down_reason, "the last word")
            assert (client.capabilities, client.epoch, client.has_socket) == (None, 0, False)

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
