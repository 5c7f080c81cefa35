"""How evenly connections are spread over the API servers, as `GET /pool` tells it."""

import asyncio
import itertools
import math
import re
import statistics
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter
from typing import Any

import msgspec

from benchlib.client import Connection, Target
from benchlib.errors import PoolError
from benchlib.load import closed_loop
from benchlib.report import Progress

_CONNECTIONS = re.compile(rb'^apiserver:connections\{slot="\d+"\} ([\d.]+)', re.MULTILINE)
_LOOK_SECONDS = 0.01
_SETTLE_SECONDS = 10.0
_CLOSING_SECONDS = 0.05
_TIMEOUT_SECONDS = 60.0


def unevenness(counts: Sequence[int]) -> float:
    """The fullest server's connections ÷ the mean; 1 is even. 0 if there are none."""
    return max(counts) * len(counts) / sum(counts) if sum(counts) else 0.0


def least_unevenness(connections: int, servers: int) -> float:
    """What cannot be beaten: connections do not divide."""
    return math.ceil(connections / servers) * servers / connections


def summary(trials: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Of some trials' counts by server: median and worst unevenness, and how often it was the least possible."""
    values = [unevenness(counts) for counts in trials]
    best = least_unevenness(sum(trials[0]), len(trials[0]))
    return {
        "median": statistics.median(values),
        "worst": max(values),
        "best_possible": best,
        "even_share": sum(value <= best + 1e-9 for value in values) / len(values),
        "trials": [sorted(counts, reverse=True) for counts in trials],
    }


class Balance:
    """Of one pool that nobody else uses.

    Whoever asks for the counts has a connection too. So it is closed before the others are opened: one that stands on
    one server already would be the reason why another gets more.
    """

    def __init__(self, target: Target) -> None:
        self._target = target

    async def measure(self, connections: int, *, trials: int, title: str) -> dict[str, Any]:
        """Open so many at once on a pool without any, look, close; again and again."""
        with Progress(title, total=trials) as progress:
            found: list[list[int]] = []
            for _ in range(trials):
                await self._settle(0)
                async with self._opened(connections):
                    found.append(await self._settle(connections))
                progress.advance()
        return summary(found)

    async def measure_beside(
        self, connections: int, *, busy: int, request: bytes, trials: int, title: str
    ) -> dict[str, Any]:
        """The same while `busy` clients keep the pool busy: where the new ones went, and what that made in all."""
        await self._settle(0)
        await asyncio.sleep(_CLOSING_SECONDS)
        busy_now = asyncio.Event()
        running = asyncio.create_task(
            closed_loop(
                self._target,
                itertools.repeat(request),
                concurrency=busy,
                until=None,
                timeout_seconds=_TIMEOUT_SECONDS,
                on_reply=lambda due, reply: busy_now.set(),
            )
        )
        new: list[list[int]] = []
        total: list[list[int]] = []
        try:
            try:
                await asyncio.wait_for(busy_now.wait(), _SETTLE_SECONDS)  # all are open then, and nobody has asked yet
            except TimeoutError:
                raise PoolError(f"none of {busy} clients got an answer") from None
            with Progress(title, total=trials) as progress:
                for _ in range(trials):
                    before = await self._settle(busy)
                    async with self._opened(connections):
                        after = await self._settle(busy + connections)
                    new.append([now - then for now, then in zip(after, before, strict=True)])
                    total.append(after)
                    progress.advance()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return {"new": summary(new), "total": summary(total)}

    @asynccontextmanager
    async def _opened(self, amount: int) -> AsyncGenerator[None]:
        await asyncio.sleep(_CLOSING_SECONDS)  # the pool must have seen the end of whoever asked
        async with AsyncExitStack() as stack:
            for connection in await asyncio.gather(*(Connection.open(self._target) for _ in range(amount))):
                stack.push_async_callback(connection.close)
            yield

    async def _settle(self, wanted: int) -> list[int]:
        """Connections by server, without the one that asks, once all are there. PoolError if that never comes."""
        deadline = perf_counter() + _SETTLE_SECONDS
        connection = await Connection.open(self._target)
        try:
            while True:
                # /metrics is read from shared memory; /pool also asks the kernel what every process weighs.
                metrics = await self._get(connection, "/metrics")
                total = sum(int(float(count)) for count in _CONNECTIONS.findall(metrics))
                if total == wanted + 1:
                    counts = _without_asker(msgspec.json.decode(await self._get(connection, "/pool")))
                    if sum(counts) == wanted:
                        return counts
                if perf_counter() > deadline:
                    raise PoolError(f"the pool counts {total - 1} connections where there are {wanted}")
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await connection.close()

    async def _get(self, connection: Connection, path: str) -> bytes:
        reply = await connection.send(self._target.request("GET", path), timeout_seconds=_TIMEOUT_SECONDS)
        if reply.failure is not None or reply.status != 200:
            raise PoolError(f"GET {path}: {reply.failure or f'HTTP {reply.status}'}: connections cannot be counted")
        return reply.document


def _without_asker(pool: Any) -> list[int]:
    return [process["connections"] - (process["slot"] == pool["answered_by"]) for process in pool["processes"]]
