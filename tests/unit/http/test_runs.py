"""Tasks that outlive the request that began them."""

import asyncio

import pytest

from apiserver.board import Board, Cell
from apiserver.http.runs import Runs


def test_a_drain_waits_for_what_runs_and_no_longer_than_it_may() -> None:
    async def test() -> None:
        slot = Board(1).slot(0)
        runs, go_on = Runs(slot), asyncio.Event()
        await runs.drain(60)  # nothing runs

        async def run() -> None:
            await go_on.wait()

        runs.start(run())
        await runs.drain(0.01)
        assert (runs.are_active, slot.get(Cell.BACKGROUND)) == (True, 1)
        go_on.set()
        await runs.drain(60)
        assert (runs.are_active, slot.get(Cell.BACKGROUND)) == (False, 0)

    asyncio.run(test())


def test_what_has_not_ended_at_the_close_is_cancelled() -> None:
    async def test() -> None:
        runs = Runs(Board(1).slot(0))
        runs.start(asyncio.sleep(3600))
        await runs.close(0.01)
        await asyncio.sleep(0)
        assert not runs.are_active

    asyncio.run(test())


def test_one_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        runs = Runs(Board(1).slot(0))

        async def fail() -> None:
            raise ValueError("a bug")

        runs.start(fail())
        await runs.close(60)

    asyncio.run(test())
    assert "a background task failed" in caplog.text
    assert "a bug" in caplog.text
