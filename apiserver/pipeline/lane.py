"""Where preprocessing runs: on the loop, or in the worker's one FIFO thread.

Concurrency comes from processes; the thread is for the one case where a process must not be deaf: long text and a slow
encoder. Its rules, from the seeds of this project:

- what runs in it has an encoder and templates of its own: two users of one tokenizer raise "Already borrowed";
- short work stays on the loop and pays no hop; a request hops once at most, after it was validated;
- what is short but not small takes a turn of the loop for itself: see `turnstile`;
- in `arrival` order nothing overtakes: while a job is outstanding, short work queues behind it. A job whose client has
  left keeps its place until it ends (priorities in the engine rely on the order);
- in `ready` order short work goes on inline, past a long job;
- context variables follow the job.
"""

import asyncio
import contextvars
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

from apiserver.card import Card
from apiserver.config import Order
from apiserver.pipeline.pace import Pace
from apiserver.pipeline.preprocess import Preprocessor
from apiserver.pipeline.turnstile import Turnstile
from apiserver.requests import PromptJob
from apiserver.timings import Timings

J = TypeVar("J", bound=PromptJob)
T = TypeVar("T")


class Lane:
    """`run` decides where a piece of preprocessing runs. One per worker, on its loop."""

    def __init__(
        self, inline: Preprocessor, threaded: Preprocessor, pace: Pace, order: Order, *, limit_seconds: float = 0.002
    ) -> None:
        self._inline = inline
        self._threaded = threaded
        self._pace = pace
        self._order = order
        self._limit_seconds = limit_seconds
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="preprocess")
        self._turnstile = Turnstile()
        self.outstanding = 0

    @property
    def preprocessor(self) -> Preprocessor:
        """The loop's own, for what costs nothing (decoding a token)."""
        return self._inline

    async def run(
        self, prepare: Callable[[Preprocessor, J, Card, Timings], T], job: J, card: Card, timings: Timings
    ) -> T:
        """The result of `prepare`, called with a preprocessor that nobody else uses meanwhile."""
        turnstile = self._turnstile
        arrived = began = time.perf_counter()
        if turnstile.is_shut and self._order != "inline":
            await turnstile.wait()
            began = time.perf_counter()
            timings.wait = began - arrived
        if self._goes_inline(job):
            try:
                return prepare(self._inline, job, card, timings)
            finally:
                turnstile.leave(time.perf_counter() - began)
        turnstile.leave(0.0)

        def turn() -> T:
            timings.wait = time.perf_counter() - arrived
            return prepare(self._threaded, job, card, timings)

        return await self._run_threaded(turn)

    def _goes_inline(self, job: PromptJob) -> bool:
        if self._order == "inline":
            return True
        if self.outstanding and self._order == "arrival":
            return False
        return self._pace.seconds(job, self._limit_seconds) <= self._limit_seconds

    async def _run_threaded(self, work: Callable[[], T]) -> T:
        abandoned = False
        context = contextvars.copy_context()

        def job() -> T | None:
            return None if abandoned else context.run(work)

        self.outstanding += 1
        future = asyncio.get_running_loop().run_in_executor(self._executor, job)
        try:
            # Shielded: a cancelled waiter must not take the job out of the queue, or what follows would overtake.
            result = await asyncio.shield(future)
        except asyncio.CancelledError:
            abandoned = True  # if it has not begun, it ends as soon as its turn comes
            future.add_done_callback(self._ended)
            raise
        except BaseException:
            self.outstanding -= 1
            raise
        # Only now, when the waiter goes on (and submits before it yields): between the job's end and this line, short
        # work that found nothing outstanding would reach the engine first.
        self.outstanding -= 1
        return cast(T, result)

    def _ended(self, future: "asyncio.Future[T | None]") -> None:
        self.outstanding -= 1
        if not future.cancelled():
            future.exception()  # nobody waits for it any more

    def close(self) -> None:
        """Let the running job end and drop the rest."""
        self._executor.shutdown(wait=False, cancel_futures=True)
