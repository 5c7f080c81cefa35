"""What goes on when its client has left: tasks that belong to the worker, which waits for them before it ends."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from apiserver.board import Cell, Slot

log = logging.getLogger("apiserver.runs")


class Runs:
    """Owns every task that it starts, and says in its worker's slot how many there are."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, run: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(run)
        self._tasks.add(task)
        self._slot.set(Cell.BACKGROUND, len(self._tasks))
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slot.set(Cell.BACKGROUND, len(self._tasks))
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())

    @property
    def are_active(self) -> bool:
        return bool(self._tasks)

    async def drain(self, seconds: float) -> None:
        """Return when all are done, or time is up."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def close(self, seconds: float) -> None:
        """Whatever is not done after these seconds is cancelled."""
        await self.drain(seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
