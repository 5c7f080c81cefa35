"""An API server and a core with a network between them: heartbeats, silence, cuts, another incarnation."""

import asyncio
import logging
import socket
import time
from typing import Any

import msgspec
import pytest

from engine_bridge import wire
from engine_bridge.client import EngineClient, EngineDead, EngineLoading
from engine_bridge.figures import write, write_unreachable
from engine_bridge.status import EngineRow, EngineState, Field, make_descriptor
from engine_bridge.transport import MAX_MESSAGE_BYTES
from engine_bridge.wire import (
    WIRE_VERSION,
    Embed,
    EngineDown,
    Failure,
    FailureKind,
    FinishReason,
    ForEpoch,
    Generate,
    Heartbeat,
    Hello,
    Output,
    SamplingParams,
    Welcome,
    unpack_ids,
)
from tests.ends import DEADLINE_SECONDS, ENDLESS, PROMPT, Impostor, collect, generate, until
from tests.forwarder import Weather
from tests.pool import quiet_port
from tests.remote_ends import SILENCE_SECONDS, Remote, run_remote


def is_free(address: str) -> bool:
    """ZMQ closes a socket in a thread of its own, some time after it was told to."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        except OSError:
            return False
    return True


# ---- the handshake and the epoch ----


def test_an_api_server_waits_for_a_core_that_is_not_there_yet() -> None:
    async def test(ends: Remote) -> None:
        first = ends.core()
        address = str(await first.address())
        await first.stop()
        await until(lambda: is_free(address), "the port")
        client, _ = ends.client(address, ends.keys())
        await until(lambda: "nobody can be reached" in client.lost_reason, "a try")
        second = ends.core("--load-seconds", "0.5", address=address, epoch=2)
        await until(lambda: client.heartbeat, "a heartbeat")
        with pytest.raises(EngineLoading):
            client.require()
        await until(lambda: client.epoch == 2, "a Welcome")
        await second.counts(0)

    run_remote(test)


def test_the_core_refuses_what_is_meant_for_another_incarnation() -> None:
    async def test(ends: Remote) -> None:
        core = ends.core(epoch=5)
        raw = ends.raw(str(await core.address()), ends.keys())
        raw.say(Hello(WIRE_VERSION, heartbeats=True))
        await until(lambda: any(isinstance(message, Welcome) for message in raw.messages), "a Welcome")
        raw.say(ForEpoch(4), Generate(1, PROMPT, ENDLESS))
        await until(lambda: EngineDown("the engine was restarted") in raw.messages, "a refusal")
        assert core.row.get(Field.REQUESTS) == 0
        raw.say(ForEpoch(5), Generate(2, PROMPT, ENDLESS))
        await core.counts(1)

    run_remote(test)


def test_every_message_after_the_welcome_says_its_epoch() -> None:
    async def test(ends: Remote) -> None:
        core = Impostor(ends.client_context, "tcp://127.0.0.1:0")
        client, _ = ends.client(core.address, None)
        await until(lambda: core.heard, "a Hello")
        assert core.heard[0] == Hello(WIRE_VERSION, heartbeats=True)
        core.say(Welcome(WIRE_VERSION, 9, wire.Capabilities("generate", 100, 100)))
        await until(lambda: client.epoch, "the Welcome")
        core.batches.clear()
        async with client.open() as submission:
            generate(submission, ENDLESS)
            await until(lambda: len(core.batches) >= 3, "the request, and heartbeats")
        assert all(batch[0] == ForEpoch(9) for batch in core.batches)
        client.disconnect("the test is over")
        core.close()

    run_remote(test)


def test_a_restarted_core_is_met_again_and_the_old_ones_requests_have_ended() -> None:
    async def test(ends: Remote) -> None:
        address = f"tcp://127.0.0.1:{quiet_port()}"
        first = ends.core("--step-ms", "10", address=address, epoch=1)
        await first.address()
        client = await ends.welcomed(address)
        async with client.open() as submission:
            generate(submission, ENDLESS)
            await first.counts(1)
            await first.stop()
            try:
                answers = await collect(submission)
            except EngineDead:
                pass  # the end of the connection was noticed before the core's last word was read
            else:
                assert isinstance(answers[-1], Failure)
                assert answers[-1].kind is FailureKind.UNAVAILABLE
        await until(lambda: is_free(address), "the port that the first one still says its last words on")
        second = ends.core("--mode", "echo", address=address, epoch=2)
        await until(lambda: client.epoch == 2, "the new core's Welcome")
        async with client.open() as submission:
            generate(submission, SamplingParams(max_tokens=5))
            answers = await collect(submission)
        text = [token for answer in answers if isinstance(answer, Output) for token in unpack_ids(answer.new_token_ids)]
        assert bytes(text) == b"Hello"
        await second.counts(0)

    run_remote(test)


def test_an_api_server_of_another_version_is_refused_and_both_sides_say_so(caplog: pytest.LogCaptureFixture) -> None:
    async def test(ends: Remote) -> None:
        core = ends.core()
        raw = ends.raw(str(await core.address()), ends.keys())
        raw.say(Hello(WIRE_VERSION + 1, heartbeats=True))
        await until(lambda: raw.messages, "an answer")
        [rejected] = raw.messages
        assert isinstance(rejected, wire.Rejected)
        assert f"wire version {WIRE_VERSION}, this API server {WIRE_VERSION + 1}" in rejected.message
        assert "refused raw/api-0.1: the engine core speaks wire version" in caplog.text

    run_remote(test)


def test_a_core_of_another_version_is_not_asked_again_over_the_network_either() -> None:
    async def test(ends: Remote) -> None:
        core = Impostor(ends.client_context, "tcp://127.0.0.1:0")
        client, _ = ends.client(core.address, None)
        await until(lambda: core.heard, "a Hello")
        core.say(wire.Rejected(99, "the engine core speaks wire version 99, this API server 1"))
        await until(lambda: client.rejection, "a rejection")
        core.close()
        assert not client.has_socket

    run_remote(test)


# ---- figures ----


def test_what_the_core_says_of_itself_reaches_a_row_elsewhere() -> None:
    async def test(ends: Remote) -> None:
        core = ends.core("--step-ms", "5", epoch=3)
        client = await ends.welcomed(str(await core.address()))
        async with client.open() as submission:
            generate(submission, ENDLESS)
            await until(lambda: client.heartbeat and client.heartbeat.output_tokens > 2, "a heartbeat with tokens")
            row = EngineRow.attach(make_descriptor())
            assert client.heartbeat is not None
            write(row, client.heartbeat, client.heard_at)
            assert (row.state, row.get(Field.EPOCH), row.get(Field.RUNNING)) == (EngineState.READY, 3, 1)
            assert row.get(Field.REQUESTS) == 1
            assert row.has_been_ready
            assert row.get(Field.HEARTBEAT) == client.heard_at
            assert row.get(Field.PID) == 0  # of another machine

    run_remote(test)


def test_a_row_follows_another_incarnation_and_its_times_are_of_this_machine() -> None:
    row = EngineRow.attach(make_descriptor())
    ready = Heartbeat(1, EngineState.READY, 2, 3, seconds_since_output=0.5, token_capacity=8, stage="")
    write(row, ready, 10_000_000_000)
    assert row.get(Field.LAST_OUTPUT) == 9_500_000_000
    assert row.has_been_ready
    write(
        row, msgspec.structs.replace(ready, epoch=2, state=EngineState.LOADING, stage="reading weights"), 11_000_000_000
    )
    assert row.state is EngineState.LOADING
    assert row.stage == "reading weights"
    assert not row.has_been_ready
    write(row, msgspec.structs.replace(ready, epoch=2, state=77), 12_000_000_000)
    assert row.state is EngineState.LOADING  # whatever a later core may mean by it: it does not serve
    write_unreachable(row)
    assert (row.state, row.get(Field.RUNNING), row.get(Field.WAITING)) == (EngineState.UNREACHABLE, 0, 0)


# ---- the network ----


def test_a_stream_survives_delay_and_loss_with_every_token_in_its_place() -> None:
    async def test(ends: Remote) -> None:
        core = ends.core("--step-ms", "2")
        near = await ends.welcomed(str(await core.address()), "near/api-0.1")
        network = await ends.network(core, Weather(delay_seconds=0.05, loss=0.05, seed=3))
        far = await ends.welcomed(f"tcp://127.0.0.1:{network.port}")
        params = SamplingParams(max_tokens=300, seed=11, ignore_eos=True)

        async def tokens(client: EngineClient) -> list[int]:
            async with client.open() as submission:
                generate(submission, params)
                answers = await collect(submission)
            assert isinstance(answers[-1], Output)
            assert answers[-1].finish_reason is FinishReason.LENGTH
            return [
                token for answer in answers if isinstance(answer, Output) for token in unpack_ids(answer.new_token_ids)
            ]

        expected, *received = await asyncio.gather(tokens(near), *(tokens(far) for _ in range(4)))
        assert len(expected) == 300
        assert received == [expected] * 4
        assert network.lost_segments > 0

    run_remote(test)


def test_a_cut_without_a_word_ends_every_request_within_the_limit_and_is_healed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def test(ends: Remote) -> None:
        core = ends.core("--step-ms", "5")
        network = await ends.network(core)
        client = await ends.welcomed(f"tcp://127.0.0.1:{network.port}")
        async with client.open() as submission:
            generate(submission, ENDLESS)
            await core.counts(1)
            network.cut()
            async with asyncio.timeout(SILENCE_SECONDS + DEADLINE_SECONDS):
                with pytest.raises(EngineDead, match="lost"):
                    await collect(submission)
        await core.counts(0)  # the core has missed it too
        assert "nothing heard from pool/api-0.1" in caplog.text
        with pytest.raises(EngineDead):
            client.open()
        network.heal()
        await until(lambda: client.epoch, "the core, again")
        async with client.open() as submission:
            generate(submission, SamplingParams(max_tokens=3))
            assert isinstance((await collect(submission))[-1], Output)

    run_remote(test, SILENCE_SECONDS)


def test_a_connection_that_is_reset_ends_its_requests_at_once_and_is_made_again() -> None:
    async def test(ends: Remote) -> None:
        core = ends.core("--step-ms", "5")
        network = await ends.network(core)
        client = await ends.welcomed(f"tcp://127.0.0.1:{network.port}")
        async with client.open() as submission:
            generate(submission, ENDLESS)
            await core.counts(1)
            network.reset()
            with pytest.raises(EngineDead, match="lost"):
                await collect(submission)
        assert client.lost_reason == "the connection was cut"
        await until(lambda: client.epoch, "the core, again")
        await core.counts(0)

    run_remote(test)


def test_api_servers_of_two_pools_with_the_same_slot_and_pid_are_two() -> None:
    async def test(ends: Remote) -> None:
        core = ends.core("--step-ms", "5")
        address = str(await core.address())
        one, other = await ends.welcomed(address, "a/api-0.1"), await ends.welcomed(address, "b/api-0.1")
        async with one.open() as first, other.open() as second:
            assert generate(first, ENDLESS) == generate(second, ENDLESS)
            await core.counts(2)
            await first.accepted()
            await second.accepted()

    run_remote(test)


def test_a_pool_that_falls_silent_loses_its_requests_and_the_others_keep_theirs() -> None:
    async def test(ends: Remote) -> None:
        core = ends.core("--step-ms", "5")
        address = str(await core.address())
        client = await ends.welcomed(address)
        raw = ends.raw(address, ends.keys("two"))
        raw.say(Hello(WIRE_VERSION, heartbeats=True))
        raw.say(ForEpoch(1), Generate(1, PROMPT, ENDLESS))
        async with client.open() as submission:
            generate(submission, ENDLESS)
            await core.counts(2)
            await core.counts(1)  # nobody beats for the other one
            await until(lambda: any(isinstance(message, EngineDown) for message in raw.messages), "its end")
            raw.say(ForEpoch(1))  # too late: it must begin anew
            await until(
                lambda: EngineDown("the engine core does not know this API server") in raw.messages, "so it says"
            )
            await submission.receive()

    run_remote(test, SILENCE_SECONDS)


def test_a_core_that_was_stopped_for_a_while_does_not_call_the_others_silent() -> None:
    async def test(ends: Remote) -> None:
        core = ends.core()
        address = str(await core.address())
        client = await ends.welcomed(address)
        await until(lambda: client.heartbeat, "a heartbeat")
        # One loop holds both ends, so standing still stops both of them: neither may blame the other.
        _stand_still(1.5 * SILENCE_SECONDS)
        before = client.heard_at
        await until(lambda: client.heard_at > before, "a heartbeat after the pause")
        assert client.epoch == 1

    run_remote(test, SILENCE_SECONDS)


def _stand_still(seconds: float) -> None:
    time.sleep(seconds)


# ---- memory ----


def test_a_dead_link_holds_no_more_than_was_sent_before_its_silence_was_noticed() -> None:
    async def test(ends: Remote) -> None:
        core = ends.core("--step-ms", "1")
        network = await ends.network(core)
        client = await ends.welcomed(f"tcp://127.0.0.1:{network.port}")
        network.cut()
        sent = refused = 0
        until_time = asyncio.get_running_loop().time() + 3 * SILENCE_SECONDS
        while asyncio.get_running_loop().time() < until_time:
            try:
                async with client.open() as submission:
                    submission.submit([Embed(submission.new_id(), PROMPT)])
                    sent += 1
                    await asyncio.sleep(0.001)
            except EngineDead:
                refused += 1
                await asyncio.sleep(0.001)
        assert refused > 0
        assert sent > 0
        assert client.in_flight == 0
        with pytest.raises(EngineDead):
            client.open()  # so nothing is queued any more, however long it takes
        network.heal()

    run_remote(test, SILENCE_SECONDS)


def test_a_request_that_the_core_would_not_take_is_refused_alone() -> None:
    async def test(ends: Remote) -> None:
        core = ends.core("--mode", "echo")
        client = await ends.welcomed(str(await core.address()))
        huge = params_with(json_schema="x" * (MAX_MESSAGE_BYTES + 1))
        large = params_with(json_schema="x" * (MAX_MESSAGE_BYTES // 2))
        async with client.open() as refused, client.open() as first, client.open() as second:
            generate(refused, huge)
            generate(first, large)
            generate(second, large)  # together they are too much for one message
            [failure] = await collect(refused)
            assert isinstance(failure, Failure)
            assert failure.kind is FailureKind.INVALID
            assert "too large for the engine" in failure.message
            await first.accepted()
            await second.accepted()
        assert client.epoch == 1

    run_remote(test)


def params_with(**changes: Any) -> SamplingParams:
    return SamplingParams(max_tokens=1, **changes)
