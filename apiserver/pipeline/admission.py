"""How much work the pool takes on: limits on what all its API servers together have in the engine.

Every API server counts its own requests in its own slot of the board and reads the sum of all. It first adds, then
looks, and takes back what was too much: so no two that come at the same moment both slip in, and the pool does not go
over a limit. (Both may be refused where one would have fitted, for the microsecond in which both stood there.) A dead
worker's counts go when its slot is vacated.

Requests are counted before their prompts are encoded, so that a refusal costs no more than reading the body; prompt
tokens when they are submitted, which is when they are known.
"""

import math
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NoReturn, Protocol

from apiserver.board import Board, Cell, Slot
from apiserver.config import AdmissionSettings
from apiserver.errors import InvalidRequest, Overloaded
from apiserver.metrics import Metrics
from engine_bridge.wire import Request

# Plain ints: an enum's members are slow to look up and to index with, and this is done for every request.
_ADMITTED, _QUEUED = int(Cell.ADMITTED), int(Cell.QUEUED)
_QUEUED_TOKENS, _ENDED = int(Cell.QUEUED_TOKENS), int(Cell.ENDED)
_MOST_RETRY_SECONDS = 60
_MEMORY_SECONDS = 20.0  # of busy time, after which what was measured counts for a third


class _Answer(Protocol):
    @property
    def request_id(self) -> int: ...


class Place:
    """What a job holds while it runs, as a block; leaving it gives everything back. This one is held without limits."""

    __slots__ = ("queued",)

    def __init__(self) -> None:
        self.queued: dict[int, int] = {}
        """The requests that the engine has not begun to answer, and how many prompt tokens each brings."""

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def submit(self, requests: Sequence[Request]) -> None:
        """These are about to go to the engine. Raises Overloaded."""

    def begin(self, answers: Iterable[_Answer]) -> None:
        """The engine has begun to answer these; to be called while anything is `queued`."""


class _CountedPlace(Place):
    __slots__ = ("_admission", "_count", "_submitted")

    def __init__(self, admission: "Admission", count: int) -> None:
        super().__init__()
        self._admission = admission
        self._count = count
        self._submitted = False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        cells = self._admission.cells
        cells[_ADMITTED] -= self._count
        if not self._submitted:
            cells[_QUEUED] -= self._count
            return
        cells[_ENDED] += self._count
        if self.queued:
            cells[_QUEUED] -= len(self.queued)
            cells[_QUEUED_TOKENS] -= sum(self.queued.values())

    def submit(self, requests: Sequence[Request]) -> None:
        queued = self.queued
        tokens = 0
        for request in requests:
            queued[request.request_id] = own = len(request.prompt_token_ids) >> 2
            tokens += own
        self._admission.add_tokens(tokens)
        self._submitted = True

    def begin(self, answers: Iterable[_Answer]) -> None:
        cells = self._admission.cells
        for answer in answers:
            tokens = self.queued.pop(answer.request_id, None)
            if tokens is not None:
                cells[_QUEUED] -= 1
                cells[_QUEUED_TOKENS] -= tokens


class Admission:
    """One an API server. Without a limit nothing is counted."""

    def __init__(self, settings: AdmissionSettings, board: Board, slot: Slot, metrics: Metrics) -> None:
        self._limits = settings
        self._board = board
        self.cells = slot.cells
        self._metrics = metrics
        self._rate = CompletionRate()
        self._is_on = settings.limits_pool
        self._most_at_once = min(settings.max_inflight or math.inf, settings.max_queued_requests or math.inf)
        self._unlimited = Place()

    def enter(self, count: int, param: str) -> Place:
        """A place for a job of so many engine requests. Raises Overloaded if the pool has no room for it now, and
        InvalidRequest, naming `param`, if it never has."""
        if not self._is_on:
            return self._unlimited
        limits, cells = self._limits, self.cells
        if count > self._most_at_once:
            raise InvalidRequest(
                f"This request is {count} requests to the engine (prompts times choices), and this server takes "
                f"{self._most_at_once} at a time. Send it in parts.",
                param=param,
            )
        cells[_ADMITTED] += count
        cells[_QUEUED] += count
        if limits.max_inflight and self._board.total(_ADMITTED) > limits.max_inflight:
            self._take_back(count, "max_inflight", f"has {limits.max_inflight} requests in progress")
        if limits.max_queued_requests and self._board.total(_QUEUED) > limits.max_queued_requests:
            self._take_back(count, "max_queued_requests", f"has {limits.max_queued_requests} requests waiting")
        return _CountedPlace(self, count)

    def _take_back(self, count: int, limit: str, has: str) -> NoReturn:
        self.cells[_ADMITTED] -= count
        self.cells[_QUEUED] -= count
        self._refuse(limit, has)

    def add_tokens(self, tokens: int) -> None:
        """Count them as queued. Raises Overloaded if they are too many; a prompt alone never is."""
        most = self._limits.max_queued_tokens
        cells = self.cells
        cells[_QUEUED_TOKENS] += tokens
        if most and tokens < (total := self._board.total(_QUEUED_TOKENS)) and total > most:
            cells[_QUEUED_TOKENS] -= tokens
            self._refuse("max_queued_tokens", f"has {total - tokens} prompt tokens waiting, and {most} are its limit")

    def _refuse(self, limit: str, has: str) -> NoReturn:
        self._metrics.rejected(limit)
        raise Overloaded(f"The server {has}. Try again later.", retry_after_seconds=self.retry_after_seconds)

    @property
    def retry_after_seconds(self) -> int:
        """How long the pool will probably take for what it has."""
        return self._rate.seconds_for(self._board.total(_ADMITTED))

    def beat(self, now: float) -> None:
        """Measure how fast requests end; to be called a few times a second, with the time in seconds."""
        if self._is_on:
            self._rate.see(now, self._board.total(_ENDED), busy=self._board.total(_ADMITTED) > 0)


class CompletionRate:
    """How many requests a second the pool brings to an end, while it has any; old times fade."""

    def __init__(self) -> None:
        self._seen: tuple[float, int] | None = None
        self._busy = 0.0  # seconds
        self._ended = 0.0

    def see(self, now: float, ended: int, *, busy: bool) -> None:
        """`ended` counts since the start of the pool."""
        if self._seen is not None:
            seconds, more = now - self._seen[0], ended - self._seen[1]
            if busy or more:  # an idle pool is not a slow one
                fading = math.exp(-seconds / _MEMORY_SECONDS)
                self._busy = self._busy * fading + seconds
                self._ended = self._ended * fading + more
        self._seen = now, ended

    def seconds_for(self, requests: int) -> int:
        """Until so many have ended, as a Retry-After: 1 to 60, whole."""
        # Where none has ended yet, they take longer than we have watched.
        seconds = requests * self._busy / self._ended if self._ended else self._busy
        return min(max(1, math.ceil(seconds)), _MOST_RETRY_SECONDS)
