"""A rolling restart: one worker after another, each successor up before its predecessor is told to go.

Standard library only; the supervisor owns the processes, this says whose turn it is. A successor lives in a slot of its
own, so for a while the pool has one worker more; a predecessor that still has running requests drains beside it.
"""

import logging
from collections import deque
from collections.abc import Callable

from apiserver.board import Board, WorkerState

log = logging.getLogger("apiserver.rolling")


class RollingRestart:
    """`begin` any time, `step` often. While nothing is to be replaced both cost nothing."""

    def __init__(self, board: Board, fork: Callable[[int], None], retire: Callable[[int], None]) -> None:
        self._board = board
        self._fork = fork
        self._retire = retire
        self._waiting: deque[int] = deque()  # slots whose worker is to go
        self.successor: int | None = None
        """The slot of the worker that is starting to take over, if one is."""
        self.retiring: set[int] = set()
        """The slots whose worker has been told to go."""

    def begin(self) -> None:
        """Replace every worker that is there now; one that already waits for it is not replaced twice."""
        self._waiting = deque(slot.number for slot in self._board.slots if slot.number not in self.retiring)

    @property
    def is_running(self) -> bool:
        return self.successor is not None or bool(self._waiting)

    def step(self) -> bool:
        """Do what can be done now. Returns True when that was the last of it."""
        if self.successor is not None:
            if self._board.slot(self.successor).state is not WorkerState.READY:
                return False
            self.successor = None
            predecessor = self._waiting.popleft()
            self.retiring.add(predecessor)
            self._retire(predecessor)
            if not self._waiting:
                return True
        if self._waiting:
            self.successor = self._board.free_slot()
            try:
                self._fork(self.successor)
            except OSError as error:  # no memory, or no process, for now
                log.error("cannot fork a new API server: %s; the old ones stay", error)
                self.give_up()
        return False

    def on_exit(self, slot: int) -> bool:
        """Whether this worker's exit was part of the restart: nobody has to replace it."""
        if slot in self.retiring:
            self.retiring.discard(slot)
            self._board.slot(slot).release()
            return True
        return False

    def give_up(self) -> None:
        """The successor could not start: the workers that are there stay."""
        if self.successor is not None:
            self._board.slot(self.successor).release()
        self.successor = None
        self._waiting.clear()
