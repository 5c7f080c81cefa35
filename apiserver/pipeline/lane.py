"""The one FIFO thread of a worker, for preprocessing that would hold the loop too long.

Concurrency comes from processes; this thread is for the one case where a process must not be deaf: a long text and a
slow encoder. Its rules, from the seeds of this project:

- what runs in it uses an encoder and templates of its own: two users of one tokenizer raise "Already borrowed";
- short work stays on the loop and pays no hop; a request hops once at most, after it was validated;
- in `arrival` order nothing overtakes: while a job is outstanding, short work queues behind it. A job whose client has
  left keeps its place until it ends (priorities in the engine rely on the order);
- in `ready` order short work goes on inline, past a long job;
- context variables follow the job.
"""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

Order = Literal["arrival", "ready"]
T = TypeVar("T")


class Lane:
    """`run` decides where a piece of preprocessing runs. One per worker, on its loop."""

    def __init__(self, order: Order, *, limit_seconds: float) -> None:
        self._order = order
        self._limit_seconds = limit_seconds
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="preprocess")
        self.outstanding = 0

    def goes_inline(self, seconds: float) -> bool:
        """Whether work of this estimated length may hold the loop now."""
        if seconds > self._limit_seconds:
            return False
        return self.outstanding == 0 or self._order == "ready"

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, called in the thread after everything that was given before it."""
        abandoned = False
        context = contextvars.copy_context()

        def job() -> T | None:
            return None if abandoned else context.run(work)

        loop = asyncio.get_running_loop()
        self.outstanding += 1
        future = loop.run_in_executor(self._executor, job)
        future.add_done_callback(self._ended)
        try:
            # Shielded: a cancelled waiter must not take the job out of the queue, or what follows would overtake.
            result = await asyncio.shield(future)
        except asyncio.CancelledError:
            abandoned = True  # if it has not begun, it ends as soon as its turn comes
            raise
        return result  # pyright: ignore[reportReturnType]  # None only where nobody waits any more

    def _ended(self, future: "asyncio.Future[object]") -> None:
        self.outstanding -= 1
        if not future.cancelled():
            future.exception()  # whoever waited has it; nobody else needs to hear of it

    def close(self) -> None:
        """Let the running job end and drop the rest."""
        self._executor.shutdown(wait=False, cancel_futures=True)
