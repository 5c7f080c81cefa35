"""When an answer is of no use any more: the work for it is aborted, wherever it is."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from apiserver.errors import DeadlineExceeded
from apiserver.metrics import Metrics

T = TypeVar("T")


def within(deadline: "Deadline | None", work: Awaitable[T]) -> Awaitable[T]:
    """The work itself, or limited."""
    return work if deadline is None else deadline.limit(work)


class Deadline:
    """One a request that has one. `when` is a time of the loop's clock."""

    __slots__ = ("_metrics", "_seconds", "when")

    def __init__(self, seconds: float, metrics: Metrics) -> None:
        self._seconds = seconds
        self._metrics = metrics
        self.when = asyncio.get_running_loop().time() + seconds

    async def limit(self, work: Awaitable[T]) -> T:
        """What it gives, in time. Raises DeadlineExceeded, with the work cancelled."""
        scope = asyncio.timeout_at(self.when)
        try:
            async with scope:
                return await work
        except TimeoutError:
            if not scope.expired():
                raise
            raise self.passed() from None

    def passed(self) -> DeadlineExceeded:
        """Count it, and what to tell the client."""
        self._metrics.deadline_passed()
        return DeadlineExceeded(f"The answer was not ready within {self._seconds:g} seconds, the request's time limit.")
