"""Two ways to offer load: so many clients that each wait for their reply, or arrivals that wait for nobody."""

import asyncio
import ctypes
import os
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import CLOCK_MONOTONIC, perf_counter
from types import TracebackType
from typing import Self

from benchlib.client import Connection, Reply, Target

_TIMER_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_REFUSED_PAUSE_SECONDS = 0.1

OnReply = Callable[[float, Reply], None]
"""Called at each end with the time the request was due, and what came back."""


async def closed_loop(
    target: Target,
    requests: Iterator[bytes],
    *,
    concurrency: int,
    until: float | None,
    timeout_seconds: float,
    on_reply: OnReply,
) -> None:
    """Let `concurrency` clients send one request after another until `requests` run out or the clock says `until`.

    Each has one keep-alive connection; all are opened before any client begins, and anew only when one was closed. A
    request is due when it is sent, or when its connection is asked for if it was closed.
    """
    everybody = asyncio.Barrier(concurrency)

    async def client() -> None:
        opened = await _connect(target)
        connection = None if isinstance(opened, Reply) else opened  # a failure will show at the first request
        try:
            await everybody.wait()
            for request in requests:
                due = perf_counter()
                if until is not None and due >= until:
                    return
                if connection is None or not connection.is_open:
                    opened = await _connect(target)
                    if isinstance(opened, Reply):
                        on_reply(due, opened)
                        await asyncio.sleep(_REFUSED_PAUSE_SECONDS)  # or a dead server makes us spin
                        continue
                    connection = opened
                on_reply(due, await connection.send(request, timeout_seconds=timeout_seconds))
        finally:
            if connection is not None:
                await connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(client())


async def open_loop(
    target: Target,
    requests: Iterator[bytes],
    *,
    schedule: Sequence[float],
    timeout_seconds: float,
    on_reply: OnReply,
    connections: int = 0,
) -> None:
    """Send a request at each time of `schedule` (perf_counter's clock), however many are still unanswered.

    `due` is the scheduled time, so a late client or a slow connect counts as latency and not as a gap in the load
    (coordinated omission). Connections are pooled; a new one is opened when all are busy. So many `connections` are
    opened before the first request, and used in turn: a pool may have given each to another API server.
    """
    # First in, first out: taking the last used one would keep the load on few connections, and so on few API servers.
    idle: deque[Connection] = deque()

    async def exchange(due: float, request: bytes) -> None:
        connection = _take_open(idle)
        if connection is None:
            opened = await _connect(target)
            if isinstance(opened, Reply):
                on_reply(due, opened)
                return
            connection = opened
        try:
            on_reply(due, await connection.send(request, timeout_seconds=timeout_seconds))
        except asyncio.CancelledError:
            await connection.close()
            raise
        idle.append(connection)

    try:
        opened = await asyncio.gather(*(_connect(target) for _ in range(connections)))
        idle.extend(connection for connection in opened if isinstance(connection, Connection))
        with _Alarm() as alarm:
            async with asyncio.TaskGroup() as group:
                for due in schedule:
                    await alarm.wait_until(due)
                    group.create_task(exchange(due, next(requests)))
    finally:
        for connection in idle:
            await connection.close()


def _take_open(idle: deque[Connection]) -> Connection | None:
    while idle:
        connection = idle.popleft()
        if connection.is_open:
            return connection
    return None


def poisson_schedule(
    rng: random.Random, rate: float, *, requests: int | None, duration_seconds: float | None
) -> list[float]:
    """Arrival times from 0 on with exponential gaps: so many requests, or as many as fall into the duration."""
    times: list[float] = []
    at = rng.expovariate(rate)
    while (requests is None or len(times) < requests) and (duration_seconds is None or at < duration_seconds):
        times.append(at)
        at += rng.expovariate(rate)
    return times


async def _connect(target: Target) -> Connection | Reply:
    """A connection, or the failed reply that stands for it."""
    began = perf_counter()
    try:
        return await Connection.open(target)
    except OSError as error:
        return Reply(sent_at=began, ended_at=perf_counter(), failure=f"connect: {type(error).__name__}")


class _Alarm:
    """A timer of the kernel's that the loop watches.

    The loop's own timers are in whole milliseconds, which would be most of the latency of a short embedding. (The
    `os` module has timerfd from Python 3.13 on.)
    """

    def __enter__(self) -> Self:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._loop.add_reader(self._descriptor, self._ring)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    async def wait_until(self, at: float) -> None:
        """Wait for perf_counter to reach `at`; if it has, only let the others run."""
        if at <= perf_counter():
            await asyncio.sleep(0)
            return
        seconds, rest = divmod(at, 1.0)
        value = (ctypes.c_long * 4)(0, 0, int(seconds), int(rest * 1e9))  # an itimerspec: no interval, one time
        self._waiter = self._loop.create_future()
        if self._libc.timerfd_settime(self._descriptor, _TIMER_ABSOLUTE, value, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        await self._waiter

    def _ring(self) -> None:
        os.read(self._descriptor, 8)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
