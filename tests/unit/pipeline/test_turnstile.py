"""Turns of the loop are shared: in order, one piece of work each, and nobody is forgotten."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from apiserver.pipeline.turnstile import SMALL_SECONDS, Turnstile

BIG = 2 * SMALL_SECONDS
SECONDS = 10


class Turns:
    """Counts the turns of the loop, and notes in which of them each piece of work was done."""

    def __init__(self) -> None:
        self.turnstile = Turnstile()
        self.turn = 0
        self.done: list[tuple[str, int]] = []

    async def count(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    async def work(self, name: str, seconds: float) -> None:
        if self.turnstile.is_shut:
            await self.turnstile.wait()
        self.done.append((name, self.turn))
        self.turnstile.leave(seconds)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.done]


def run(test: Callable[[Turns], Awaitable[None]]) -> Turns:
    turns = Turns()

    async def counted() -> None:
        counting = asyncio.create_task(turns.count())
        async with asyncio.timeout(SECONDS):
            await test(turns)
            while turns.turnstile.is_shut:  # noqa: ASYNC110  # turns of the loop are what is counted here
                await asyncio.sleep(0)  # turns of the loop are what is counted here
        counting.cancel()

    asyncio.run(counted())
    return turns


def test_big_pieces_that_come_together_get_a_turn_each_in_their_order() -> None:
    async def four(turns: Turns) -> None:
        await asyncio.gather(*(turns.work(name, BIG) for name in "abcd"))

    turns = run(four)
    assert turns.names == ["a", "b", "c", "d"]
    assert len({turn for _, turn in turns.done}) == 4


def test_small_ones_wait_for_nobody_and_nobody_waits_for_them() -> None:
    async def four(turns: Turns) -> None:
        await asyncio.gather(*(turns.work(name, 0.0) for name in "abcd"))

    turns = run(four)
    assert len({turn for _, turn in turns.done}) == 1


def test_a_small_one_does_not_overtake() -> None:
    async def mixed(turns: Turns) -> None:
        await asyncio.gather(turns.work("a", BIG), turns.work("b", BIG), turns.work("c", 0.0), turns.work("d", BIG))

    assert run(mixed).names == ["a", "b", "c", "d"]


@pytest.mark.parametrize("pause", range(4))
def test_one_that_leaves_gives_its_turn_to_the_next(pause: int) -> None:
    async def leaves(turns: Turns) -> None:
        tasks = [asyncio.create_task(turns.work(name, BIG)) for name in "abcd"]
        for _ in range(1 + pause):  # also in the very turn in which it is let in
            await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert [name for name in run(leaves).names if name != "b"] == ["a", "c", "d"]


def test_whatever_comes_and_goes_everybody_has_a_turn_and_it_opens_again() -> None:
    source = random.Random(7)

    async def crowd(turns: Turns) -> None:
        tasks: list[asyncio.Task[None]] = []
        for number in range(300):
            tasks.append(asyncio.create_task(turns.work(f"{number:03}", source.choice((0.0, BIG)))))
            for _ in range(source.randrange(3)):
                await asyncio.sleep(0)
            if source.random() < 0.2:
                source.choice(tasks).cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [end for end in ends if end is not None and not isinstance(end, asyncio.CancelledError)] == []
        assert len(turns.done) == sum(end is None for end in ends)

    names = run(crowd).names
    assert len(names) > 100
    assert names == sorted(names)
