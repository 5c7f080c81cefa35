"""What waits for the engine: the requests of one job, and the answers to them that nobody has taken yet.

A submission is a block: leaving it aborts what has not ended, whatever the cause. Answers wait in its inbox until its
owner takes them all at once; where they become many, those of one request are merged, so a slow reader costs one piece
of text and not a queue.
"""

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol

from engine_bridge import wire
from engine_bridge.merge import merged, portion
from engine_bridge.wire import Output, Request

Answer = Output | wire.Embedding | wire.Scores | wire.AdminDone | wire.Failure

_MOST_APART = 256  # answers in an inbox, before they are merged
# Tokens that a submission gives at once: to make text of 36,000 would hold the loop for 40 ms to 3 s. Those of steps
# that came in one turn of the loop are few, and not worth a second turn.
_MOST_TOKENS_OF_ONE = 128
_MOST_TOKENS = 2048


class Sender(Protocol):
    """Who sends the requests and brings the answers back: the client."""

    def new_id(self) -> int: ...

    def submit(self, submission: "Submission", requests: Sequence[Request | wire.Admin]) -> None: ...

    def abandon(self, request_ids: Sequence[int]) -> None: ...


class Submission:
    """The requests of one job, as an `async with` block and an inbox."""

    __slots__ = (
        "_error",
        "_inbox",
        "_is_rest",
        "_loop",
        "_most",
        "_open",
        "_sender",
        "_timer",
        "_unaccepted",
        "_waiter",
    )

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._loop = asyncio.get_running_loop()
        self._inbox: list[Answer] = []
        self._is_rest = False  # what the inbox begins with
        self._most = _MOST_APART
        self._open: set[int] = set()
        self._unaccepted: set[int] = set()
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> "Submission":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._abandon()

    def _abandon(self) -> None:
        if self._open:
            self._sender.abandon(tuple(self._open))
            self._open.clear()

    def end_at(self, when: float, error: Callable[[], Exception]) -> None:
        """At this time of the loop's clock abort what has not ended; whoever receives then gets this error, also one
        that has been waiting for its own client meanwhile."""
        self._timer = self._loop.call_at(when, self._expire, error)

    def _expire(self, error: Callable[[], Exception]) -> None:
        if self._open:
            self._abandon()
            self.fail(error())

    def new_id(self) -> int:
        return self._sender.new_id()

    def submit(self, requests: Sequence[Request | wire.Admin]) -> None:
        """Send these; each id, from `new_id`, must be new."""
        for request in requests:
            self._open.add(request.request_id)
            if type(request) is wire.Generate:
                self._unaccepted.add(request.request_id)
        self._sender.submit(self, requests)

    def abort(self, request_id: int) -> None:
        """End one of them early; nothing more is received for it."""
        self._open.discard(request_id)
        self._unaccepted.discard(request_id)
        self._sender.abandon((request_id,))

    async def accepted(self) -> None:
        """Return when every Generate is queued in the engine, or has ended. Raises EngineDead."""
        while self._unaccepted:
            await self._wake()

    async def receive(self) -> list[Answer]:
        """What has arrived since the last call, or a first part of it; waits if that is nothing. Raises EngineDead."""
        if self._is_rest:  # the client has read slowly: others have their turn between the parts
            await asyncio.sleep(0)
        while not self._inbox:
            await self._wake()
        return self.take()

    def take(self) -> list[Answer]:
        """What is there now, maybe nothing; no more of it than one turn of the loop should have to do with."""
        answers, self._inbox = portion(self._inbox, of_one=_MOST_TOKENS_OF_ONE, of_all=_MOST_TOKENS)
        self._is_rest = bool(self._inbox)
        return answers

    async def _wake(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._error is not None and not self._inbox:
            raise self._error

    # ---- called by the sender ----

    def put(self, answer: Answer) -> None:
        self._inbox.append(answer)
        if len(self._inbox) > self._most:
            self._inbox = merged(self._inbox)
            self._most = _MOST_APART + 2 * len(self._inbox)  # what cannot be merged is not looked at each time
        if type(answer) is not Output or answer.finish_reason is not None:
            self._open.discard(answer.request_id)
            self._unaccepted.discard(answer.request_id)
        self._notify()

    def accept(self, request_id: int) -> None:
        self._unaccepted.discard(request_id)
        if not self._unaccepted:
            self._notify()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._open.clear()
        self._notify()

    def _notify(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
