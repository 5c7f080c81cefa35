"""EngineClient, Core and the simulated engine in one loop: how they end, and engines that break their promises."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine_bridge import wire
from engine_bridge.client import EngineDead
from engine_bridge.core import Core
from engine_bridge.engines import EngineError, Key
from engine_bridge.status import EngineRow, EngineState, Field, Figures, make_descriptor
from engine_bridge.submission import Submission
from engine_bridge.wire import (
    Failure,
    FailureKind,
    unpack_ids,
)
from tests.broken_engine import Broken
from tests.ends import ENDLESS, PROMPT, collect, ends, generate, run, until

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
