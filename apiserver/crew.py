"""The API servers: how many there are, how many there should be, and what follows from the difference.

`tend` compares the two and does what is missing: fork, replace, retire. A death, `apiserver scale`, a rolling restart
(SIGHUP) and a worker that has served its number of requests are all the same to it. Who is to be replaced goes when a
successor is up, one after the other; a successor lives in a slot of its own, so for a while there is one worker more,
and a predecessor that still has running requests drains beside it. Standard library only: whoever calls this forks.
"""

import logging
import os
import random
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from apiserver import child
from apiserver.board import Board, Cell, Slot, WorkerState
from apiserver.exit_code import ExitCode
from apiserver.stillness import Stillness

_YOUNG_SECONDS = 3.0  # who dies younger than this has hardly served …
_CRASH_LOOP_DEATHS = 5  # … and so many of them in a row, in one slot, are a crash loop
_FORK_RETRY_SECONDS = 1.0
_SUCCESSOR_RETRY_SECONDS = 10.0  # after one that could not start
_JITTER = 0.1  # of the number of requests: workers that began together shall not all be replaced together

log = logging.getLogger("apiserver.crew")


@dataclass(slots=True)
class _Member:
    """One API server process."""

    pid: int
    slot: Slot
    worn_at: int  # its slot's count of requests when it has served enough; 0 = never
    is_extra: bool  # `scale` asked for it
    is_outdated: bool = False  # older than what SIGHUP has read
    is_worn: bool = False  # has served its number of requests
    is_leaving: bool = False  # drains, and nobody follows
    beat: Stillness = field(default_factory=Stillness)

    @property
    def is_due(self) -> bool:
        return self.is_outdated or self.is_worn


class Crew:
    """`tend` often; `on_exit` for each reaped child. After `disband` nobody is forked any more."""

    def __init__(
        self,
        board: Board,
        run_worker: Callable[[int], int],
        *,
        blocked: Collection[signal.Signals],
        liveness_seconds: float,
        max_requests: int,
    ) -> None:
        self._board = board
        self._run_worker = run_worker
        self._blocked = blocked
        self._liveness_seconds = liveness_seconds
        self._max_requests = max_requests
        self._members: dict[int, _Member] = {}  # by pid
        self._successor: _Member | None = None  # who is starting to take over
        self._generation = 0
        self._young_deaths: dict[int, int] = {}  # in a row, by slot
        self._fork_after = self._succeed_after = 0.0
        self._is_rolling = False
        self._is_settled = False  # all have been up at once
        self._is_disbanded = False

    def __len__(self) -> int:
        return len(self._members)

    @property
    def serving(self) -> int:
        return sum(member.slot.is_serving and not member.is_leaving for member in self._members.values())

    @property
    def leaving(self) -> int:
        return sum(member.is_leaving for member in self._members.values())

    # ---- what is wanted ----

    def replace_all(self) -> None:
        """Replace every worker that is there now. Who is leaving has been replaced already."""
        for member in self._standing():
            member.is_outdated = True
        if self._successor is not None:  # forked before what was read: it is outdated as it comes
            self._successor.is_outdated = True
        self._is_rolling = True
        self._succeed_after = 0.0

    def resize(self, count: int) -> None:
        """From now on there should be so many."""
        self._board.set_count(count)

    def disband(self) -> None:
        self._is_disbanded = True

    def signal(self, number: signal.Signals) -> None:
        """To everybody; but who is draining already would take a second SIGTERM for impatience."""
        for member in self._members.values():
            drains = member.is_leaving or member.slot.state is WorkerState.DRAINING
            if number is not signal.SIGTERM or not drains:
                os.kill(member.pid, number)

    # ---- what follows ----

    def tend(self, now: float) -> None:
        if self._successor is not None and self._successor.slot.state is not WorkerState.STARTING:
            self._successor = None  # it is up; or was told to stop already, which is noticed now as anybody's
        self._notice()
        standing = self._standing()
        surplus = len(standing) - self._board.count
        if surplus > 0:
            # Those that are to be replaced first, then the youngest slots.
            standing.sort(key=lambda member: (not member.is_due, -member.slot.number))
            for member in standing[:surplus]:
                self._retire(member)
        if surplus >= 0:
            self._forget_vacant_slots()
            self._succeed(now)
        for _ in range(-surplus):
            if now >= self._fork_after:
                self._fill(now)
        if self._is_rolling and not any(member.is_outdated and not member.is_leaving for member in self._all()):
            self._is_rolling = False
            log.info("the rolling restart is complete")

    def _all(self) -> list[_Member]:
        return list(self._members.values())

    def _standing(self) -> list[_Member]:
        """Who counts: not who leaves, and not yet the successor of one that is still there."""
        return [m for m in self._members.values() if not m.is_leaving and m is not self._successor]

    def _notice(self) -> None:
        """Who drains because somebody else told it to, and who has served enough."""
        is_settled = bool(self._members)
        for member in self._standing():
            state = member.slot.state
            is_settled = is_settled and state is WorkerState.READY
            if state is WorkerState.DRAINING:
                log.info("API server %d (pid %d) was told to stop; replacing it", member.slot.number, member.pid)
                member.is_leaving = True
            elif member.worn_at and not member.is_worn and member.slot.get(Cell.REQUESTS) >= member.worn_at:
                log.info("API server %d (pid %d) has served its requests; replacing it", member.slot.number, member.pid)
                member.is_worn = True
        self._is_settled = self._is_settled or is_settled

    def _retire(self, member: _Member) -> None:
        member.is_leaving = True
        os.kill(member.pid, signal.SIGTERM)

    def _succeed(self, now: float) -> None:
        """Fork the successor of whoever is to be replaced next."""
        if self._successor is not None or now < self._succeed_after:
            return
        if not any(member.is_due for member in self._standing()):
            return
        number = self._board.free_slot()
        if number is None:  # until somebody has left
            return
        try:
            self._successor = self._fork(self._board.slot(number), is_extra=False)
        except OSError as error:  # no memory, or no process, for now
            log.error("cannot fork a new API server: %s; the old ones stay", error)
            self._board.slot(number).release()
            self._give_up(now)

    def _give_up(self, now: float) -> None:
        """A successor could not start: the workers that are there stay, and who is worn out is replaced later."""
        self._succeed_after = now + _SUCCESSOR_RETRY_SECONDS
        self._is_rolling = False
        for member in self._members.values():
            member.is_outdated = False

    def _fill(self, now: float) -> None:
        """Fork one that is missing: where one has died, or in a new slot."""
        vacant = [slot.number for slot in self._board.slots if slot.state is WorkerState.DEAD]
        number = vacant[0] if vacant else self._board.free_slot()
        if number is None:
            return
        try:
            self._fork(self._board.slot(number), is_extra=self._is_settled and not vacant)
        except OSError as error:
            self._board.slot(number).vacate()
            self._fork_after = now + _FORK_RETRY_SECONDS
            log.error("cannot fork API server %d: %s; trying again", number, error)

    def _fork(self, slot: Slot, *, is_extra: bool) -> _Member:
        self._generation += 1
        slot.occupy(self._generation)
        pid = child.fork(lambda: self._run_worker(slot.number), blocked=self._blocked)
        worn_at = 0
        if self._max_requests:
            jitter = random.randint(0, int(self._max_requests * _JITTER))
            worn_at = slot.get(Cell.REQUESTS) + self._max_requests + jitter
        member = self._members[pid] = _Member(pid, slot, worn_at, is_extra)
        return member

    def _forget_vacant_slots(self) -> None:
        """Nobody is missing: where one has died nobody follows (the pool was made smaller meanwhile)."""
        for slot in self._board.slots:
            if slot.state is WorkerState.DEAD:
                slot.release()

    # ---- ends ----

    def check_liveness(self, seconds: float) -> ExitCode | None:
        """Kill a worker whose loop stands still: its clients wait for nothing. `seconds` have passed since the last
        call. Returns why the pool cannot go on, if so."""
        limit = self._liveness_seconds
        for member in self._members.values():
            slot = member.slot
            if member.beat.look(slot.get(Cell.HEARTBEAT), seconds) < limit:
                continue
            log.error("API server %d (pid %d) has not moved for %.0f s; killing it", slot.number, member.pid, limit)
            slot.set(Cell.HEARTBEAT, time.monotonic_ns())  # once is enough
            os.kill(member.pid, signal.SIGKILL)
            if slot.state is WorkerState.STARTING and not self._is_expendable(member):
                return ExitCode.CANNOT_START
        return None

    def _is_expendable(self, member: _Member) -> bool:
        """Whether the pool does as well without it: it was to go, or to come in addition, or in another's place."""
        return member.is_leaving or member is self._successor or (member.is_extra and self._board.count > 1)

    def on_exit(self, pid: int, code: int, now: float) -> ExitCode | None:
        """One was reaped; any other child is none of ours. Returns why the pool cannot go on, if so."""
        member = self._members.pop(pid, None)
        if member is None:
            return None
        slot = member.slot
        was_young, has_served = slot.seconds_since_start < _YOUNG_SECONDS, slot.state is not WorkerState.STARTING
        was_expendable, was_successor = self._is_expendable(member), member is self._successor
        slot.vacate()
        if was_successor:
            self._successor = None
        if self._is_disbanded:
            return None
        name, how = f"API server {slot.number} (pid {pid})", child.how_it_ended(code)
        if member.is_leaving:
            self._see_off(member, name, code)
            return None
        if code == 0 and has_served:
            log.info("%s was told to stop; replacing it", name)
            return None
        if was_successor or (was_expendable and not has_served):
            self._do_without(member, name, how, now, was_successor=was_successor)
            return None
        if code == ExitCode.CANNOT_START and not has_served:
            log.error("%s could not start; stopping the pool", name)
            return ExitCode.CANNOT_START
        log.warning("%s died (%s)", name, how)
        self._board.count_death()
        return self._count_young(slot, was_young=was_young)

    def _see_off(self, member: _Member, name: str, code: int) -> None:
        member.slot.release()
        if code in (0, -signal.SIGTERM):  # the second, before it could listen
            log.info("%s was retired", name)
        else:
            log.warning("%s died (%s)", name, child.how_it_ended(code))
            self._board.count_death()

    def _do_without(self, member: _Member, name: str, how: str, now: float, *, was_successor: bool) -> None:
        member.slot.release()
        if was_successor:
            log.error("the new %s could not start (%s); the old ones stay", name, how)
            self._give_up(now)
        else:
            self._board.set_count(self._board.count - 1)
            log.error("the additional %s could not start (%s); going on with %d", name, how, self._board.count)

    def _count_young(self, slot: Slot, *, was_young: bool) -> ExitCode | None:
        self._young_deaths[slot.number] = self._young_deaths.get(slot.number, 0) + 1 if was_young else 0
        if self._young_deaths[slot.number] < _CRASH_LOOP_DEATHS:
            return None
        log.error(
            "%d API servers in a row died within %.0f s of their start: a crash loop; stopping the pool",
            _CRASH_LOOP_DEATHS,
            _YOUNG_SECONDS,
        )
        return ExitCode.CRASH_LOOP
