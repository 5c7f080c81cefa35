"""The parent: fork, reap, replace, drain. Standard library only: it forks, so it holds no loop, thread or library.

All signals that matter are blocked and taken one at a time by `sigtimedwait`; there is no handler to be reentrant
about. `docs/signals.md` has the table of signals and exit codes.
"""

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Protocol

from apiserver import child
from apiserver.board import Board, Cell, WorkerState
from apiserver.rolling import RollingRestart

SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
_TICK_SECONDS = 0.05
_YOUNG_SECONDS = 3.0  # who dies younger than this has hardly served …
_CRASH_LOOP_DEATHS = 5  # … and so many of them in a row, in one slot, are a crash loop
_FORK_RETRY_SECONDS = 1.0
_ENGINE_STOP_SECONDS = 5.0
_LOADING_ENGINE_STOP_SECONDS = 1.0  # it has nobody to answer, and loading code may not listen
_ENGINE_DEATH_SECONDS = 2.0  # after it: idle clients that ask get a 503, and not a closed connection
_DRAIN_SLACK_SECONDS = 1.5
_END_SECONDS = 3.0  # for the error ends to leave, before SIGKILL

log = logging.getLogger("apiserver.supervisor")


class ExitCode(IntEnum):
    """What the pool's exit says."""

    STOPPED = 0
    CANNOT_START = child.EXIT_CANNOT_START  # an API server or the engine failed to start
    ENGINE_DIED = 4
    CRASH_LOOP = 5


class EngineStatus(Protocol):
    """What the supervisor reads and writes of the engine's row."""

    @property
    def is_ready(self) -> bool: ...

    @property
    def has_been_ready(self) -> bool: ...

    def mark_dead(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """How to exec the engine core, and which descriptors it inherits."""

    argv: Sequence[str]
    descriptors: Sequence[int]


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: `drain_delay` between "not ready" and shutting the door, `drain` for running requests; `liveness` is
    how long a worker's loop may stand still."""

    drain_delay: float
    drain: float
    liveness: float


class _Phase(Enum):
    RUNNING = 0
    DELAYING = 1  # not ready any more, but the door is open (load balancers need time to notice)
    DRAINING = 2  # the door is shut; workers finish what runs
    ENDING = 3  # workers tell whoever still waits, and go
    STOPPING_ENGINE = 4


class Supervisor:
    """`run` once; it returns the exit code when every child is gone."""

    def __init__(
        self,
        board: Board,
        listeners: Sequence[socket.socket],
        run_worker: Callable[[int], int],
        engine_command: EngineCommand | None,
        engine_status: EngineStatus,
        patience: Patience,
        on_ready: Callable[[], None],
        reload: Callable[[], bool],
    ) -> None:
        self._board = board
        self._listeners = listeners
        self._run_worker = run_worker
        self._engine_command = engine_command
        self._engine_status = engine_status
        self._patience = patience
        self._on_ready = on_ready
        self._reload = reload
        self._rolling = RollingRestart(board, self._fork_worker, self._retire_worker)
        self._workers: dict[int, int] = {}  # pid → slot
        self._vacant: dict[int, float] = {}  # slot → when to try its fork again
        self._engine_pid: int | None = None
        self._generation = 0
        self._young_deaths: dict[int, int] = {}  # in a row, by slot
        self._phase = _Phase.RUNNING
        self._deadline: float | None = None
        self._exit_code = ExitCode.STOPPED
        self._said_ready = False
        self._last_tick = self._awake_since = time.monotonic()

    def run(self) -> int:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would hide every death from waitpid
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self._start_engine()
        for slot in range(self._board.count):
            self._fork_worker(slot)
        while self._workers or self._engine_pid is not None:
            received = signal.sigtimedwait(SIGNALS, _TICK_SECONDS)
            match received.si_signo if received is not None else None:
                case signal.SIGCHLD:
                    self._reap()
                case signal.SIGTERM | signal.SIGINT:
                    self._on_stop_signal()
                case signal.SIGQUIT:
                    self._end(ExitCode.STOPPED)
                case signal.SIGHUP:
                    self._on_hangup()
                case _:
                    pass
            self._janitor(time.monotonic())
        return self._exit_code

    # ---- children ----

    def _fork_worker(self, slot: int) -> None:
        self._generation += 1
        self._board.slot(slot).occupy(self._generation)
        pid = child.fork(lambda: self._run_worker(slot), blocked=SIGNALS)
        self._workers[pid] = slot

    def _retire_worker(self, slot: int) -> None:
        for pid, number in self._workers.items():
            if number == slot:
                os.kill(pid, signal.SIGTERM)

    def _on_hangup(self) -> None:
        """Read again what may have changed, and replace the workers one by one; nobody's request fails by it."""
        if self._phase is not _Phase.RUNNING:
            return
        if self._reload():
            log.info("SIGHUP: replacing %d API servers one by one", len(self._workers))
            self._rolling.begin()

    def _start_engine(self) -> None:
        command = self._engine_command
        if command is None:  # it is on another machine, and somebody else's child
            return
        self._engine_pid = child.fork(lambda: child.exec_program(command.argv, command.descriptors), blocked=SIGNALS)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid == self._engine_pid:
                self._engine_pid = None
                child.kill_group(pid)  # what it started must not outlive it
                self._on_engine_exit(code)
            elif pid in self._workers:
                self._on_worker_exit(self._workers.pop(pid), pid, code)

    def _on_worker_exit(self, slot: int, pid: int, code: int) -> None:
        row = self._board.slot(slot)
        was_young, has_served = row.seconds_since_start < _YOUNG_SECONDS, row.state is not WorkerState.STARTING
        row.vacate()
        if self._phase is not _Phase.RUNNING:
            if not self._workers:
                self._stop_engine()
            return
        if self._rolling.on_exit(slot):
            log.info("API server %d (pid %d) was retired", slot, pid)
        elif slot == self._rolling.successor:
            log.error(
                "the new API server (pid %d) could not start (%s); the old ones stay", pid, child.how_it_ended(code)
            )
            self._rolling.give_up()
        elif code == ExitCode.CANNOT_START and not has_served:
            log.error("API server %d (pid %d) could not start; stopping the pool", slot, pid)
            self._end(ExitCode.CANNOT_START)
        elif code == 0:
            log.info("API server %d (pid %d) was told to stop; replacing it", slot, pid)
            self._replace(slot)
        else:
            log.warning("API server %d (pid %d) died (%s)", slot, pid, child.how_it_ended(code))
            self._on_worker_death(slot, was_young=was_young)

    def _on_worker_death(self, slot: int, *, was_young: bool) -> None:
        self._board.count_death()
        self._young_deaths[slot] = self._young_deaths.get(slot, 0) + 1 if was_young else 0
        if self._young_deaths[slot] < _CRASH_LOOP_DEATHS:
            self._replace(slot)
            return
        log.error(
            "%d API servers in a row died within %.0f s of their start: a crash loop; stopping the pool",
            _CRASH_LOOP_DEATHS,
            _YOUNG_SECONDS,
        )
        self._end(ExitCode.CRASH_LOOP)

    def _replace(self, slot: int) -> None:
        self._vacant.pop(slot, None)
        try:
            self._fork_worker(slot)
        except OSError as error:  # no memory, or no process, for now
            self._board.slot(slot).vacate()
            self._vacant[slot] = time.monotonic() + _FORK_RETRY_SECONDS
            log.error("cannot fork API server %d: %s; trying again", slot, error)

    def _on_engine_exit(self, code: int) -> None:
        self._engine_status.mark_dead()
        if self._phase is _Phase.STOPPING_ENGINE:
            return
        if self._engine_status.has_been_ready:
            log.error(
                "the engine core died (%s); every waiting request is answered with an error", child.how_it_ended(code)
            )
            self._blame(ExitCode.ENGINE_DIED)
            if self._phase in (_Phase.RUNNING, _Phase.DELAYING):
                self._drain(_ENGINE_DEATH_SECONDS)  # nothing runs any more, so this takes no time
        elif self._phase is _Phase.RUNNING:
            log.error("the engine core could not start (%s); stopping", child.how_it_ended(code))
            self._end(ExitCode.CANNOT_START)

    # ---- the end ----

    def _on_stop_signal(self) -> None:
        if self._phase is not _Phase.RUNNING:
            log.info("second signal: stopping at once")
            self._end(ExitCode.STOPPED)
            return
        log.info("draining: no new connections, %.0f s for running requests", self._patience.drain)
        self._board.set_draining()
        if self._patience.drain_delay > 0:
            self._phase, self._deadline = _Phase.DELAYING, time.monotonic() + self._patience.drain_delay
        else:
            self._drain(self._patience.drain)

    def _drain(self, seconds: float) -> None:
        """Refuse new connections for every holder of the socket; workers finish what runs, then stop."""
        # The workers know the same limit, and end their requests at it; the slack lets them.
        self._phase, self._deadline = _Phase.DRAINING, time.monotonic() + seconds + _DRAIN_SLACK_SECONDS
        self._board.set_draining()
        self._shut_door()
        self._signal_workers(signal.SIGTERM)

    def _end(self, code: ExitCode) -> None:
        """Stop now, with just enough time to tell everybody who waits. The first fault's code is the pool's."""
        self._blame(code)
        if self._phase in (_Phase.ENDING, _Phase.STOPPING_ENGINE):
            return
        self._phase, self._deadline = _Phase.ENDING, time.monotonic() + _END_SECONDS
        self._board.set_draining()
        self._shut_door()
        self._signal_workers(signal.SIGQUIT)

    def _blame(self, code: ExitCode) -> None:
        if self._exit_code is ExitCode.STOPPED:
            self._exit_code = code

    def _shut_door(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):  # it has been shut before
                listener.shutdown(socket.SHUT_RDWR)

    def _stop_engine(self) -> None:
        self._phase = _Phase.STOPPING_ENGINE
        is_loaded = self._engine_status.has_been_ready
        seconds = _ENGINE_STOP_SECONDS if is_loaded else _LOADING_ENGINE_STOP_SECONDS
        self._deadline = time.monotonic() + seconds
        if self._engine_pid is not None:
            os.kill(self._engine_pid, signal.SIGTERM)

    def _signal_workers(self, number: int) -> None:
        for pid, slot in self._workers.items():
            if number != signal.SIGTERM or slot not in self._rolling.retiring:  # told twice, it would hurry
                os.kill(pid, number)
        if not self._workers:
            self._stop_engine()

    # ---- what is due by time ----

    def _janitor(self, now: float) -> None:
        if now - self._last_tick > self._patience.liveness / 2:
            self._awake_since = now  # we ourselves stood still (a paused container): so did they, for no fault
        self._last_tick = now
        if self._phase is _Phase.RUNNING:
            self._say_ready()
            self._check_liveness(now)
            if self._said_ready and self._rolling.step():
                log.info("the rolling restart is complete")
            for slot in [slot for slot, due in self._vacant.items() if due <= now]:
                self._replace(slot)
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self._on_deadline()

    def _on_deadline(self) -> None:
        match self._phase:
            case _Phase.DELAYING:
                self._drain(self._patience.drain)
            case _Phase.DRAINING:
                self._end(ExitCode.STOPPED)
            case _Phase.ENDING:
                log.warning("%d API servers did not stop in time; killing them", len(self._workers))
                self._signal_workers(signal.SIGKILL)
            case _Phase.STOPPING_ENGINE:
                if self._engine_pid is not None:
                    if self._engine_status.has_been_ready:
                        log.warning("the engine core did not stop in time; killing it")
                    os.kill(self._engine_pid, signal.SIGKILL)
                    child.kill_group(self._engine_pid)
            case _Phase.RUNNING:
                pass

    def _check_liveness(self, now: float) -> None:
        """Kill a worker whose loop stands still: its clients wait for nothing."""
        limit = self._patience.liveness
        if now - self._awake_since < limit:
            return
        for pid, slot in self._workers.items():
            row = self._board.slot(slot)
            if row.seconds_since_beat < limit:
                continue
            log.error("API server %d (pid %d) has not moved for %.0f s; killing it", slot, pid, limit)
            row.set(Cell.HEARTBEAT, time.monotonic_ns())  # once is enough
            os.kill(pid, signal.SIGKILL)
            if row.state is WorkerState.STARTING and slot != self._rolling.successor:
                self._end(ExitCode.CANNOT_START)
                return

    def _say_ready(self) -> None:
        if self._said_ready or not self._engine_status.is_ready:
            return
        if all(slot.is_serving and slot.get(Cell.ENGINE_EPOCH) for slot in self._board.slots):
            self._said_ready = True
            self._on_ready()
