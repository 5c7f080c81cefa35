"""The parent: fork, reap, replace, drain. Standard library only: it forks, so it holds no loop, thread or library.

All signals that matter are blocked and taken one at a time by `sigtimedwait`; there is no handler to be reentrant
about. Children reset the mask, leave the terminal's process group (Ctrl-C reaches the supervisor alone, which drains),
and die with it (pdeathsig), also while they load.
"""

import ctypes
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NoReturn, Protocol

from apiserver.board import Board, WorkerState

SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1
_TICK_SECONDS = 0.05
_CRASH_LOOP_DEATHS = 5
_CRASH_LOOP_SECONDS = 10.0
_ENGINE_STOP_SECONDS = 5.0
_LAST_WORDS_SECONDS = 2.0  # after the engine's death: workers tell every client before they go
_KILL_GRACE_SECONDS = 3.0  # beyond the drain's own limit, before SIGKILL

log = logging.getLogger("apiserver.supervisor")
_libc = ctypes.CDLL(None, use_errno=True)


class ExitCode(IntEnum):
    """What the pool's exit says; `docs/signals.md` has the table."""

    STOPPED = 0
    CANNOT_START = 3  # an API server or the engine failed to start
    ENGINE_DIED = 4
    CRASH_LOOP = 5


class EngineStatus(Protocol):
    """What the supervisor reads and writes of the engine's row."""

    @property
    def is_ready(self) -> bool: ...

    def mark_dead(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """How to exec the engine core, and which descriptors it inherits."""

    argv: Sequence[str]
    descriptors: Sequence[int]


@dataclass(frozen=True, slots=True)
class DrainSettings:
    """Seconds: `delay` between "not ready" and shutting the door, `timeout` for running requests."""

    delay: float = 0.0
    timeout: float = 30.0


class _Phase(Enum):
    RUNNING = 0
    DELAYING = 1  # not ready any more, but the door is open (load balancers need time to notice)
    DRAINING = 2  # the door is shut; workers finish what runs
    STOPPING_ENGINE = 3


class Supervisor:
    """`run` once; it returns the exit code when every child is gone."""

    def __init__(
        self,
        board: Board,
        listeners: Sequence[socket.socket],
        run_worker: Callable[[int], int],
        engine_command: EngineCommand,
        engine_status: EngineStatus,
        drain: DrainSettings,
        on_ready: Callable[[], None],
    ) -> None:
        self._board = board
        self._listeners = listeners
        self._run_worker = run_worker
        self._engine_command = engine_command
        self._engine_status = engine_status
        self._drain = drain
        self._on_ready = on_ready
        self._workers: dict[int, int] = {}  # pid → slot
        self._engine_pid: int | None = None
        self._generation = 0
        self._deaths: list[float] = []
        self._phase = _Phase.RUNNING
        self._deadline: float | None = None
        self._exit_code = ExitCode.STOPPED
        self._said_ready = False
        self._pid = os.getpid()

    def run(self) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self._start_engine()
        for slot in range(self._board.count):
            self._fork_worker(slot)
        while self._workers or self._engine_pid is not None:
            received = signal.sigtimedwait(SIGNALS, _TICK_SECONDS)
            match received.si_signo if received is not None else None:
                case signal.SIGCHLD:
                    self._reap()
                case signal.SIGTERM | signal.SIGINT | signal.SIGQUIT:
                    self._on_stop_signal()
                case _:
                    self._janitor()
        return self._exit_code

    # ---- children ----

    def _fork_worker(self, slot: int) -> None:
        self._require_one_thread()
        self._generation += 1
        pid = os.fork()
        if pid == 0:
            self._in_child(lambda: self._run_worker(slot))
        self._workers[pid] = slot
        self._board.slot(slot).occupy(pid, self._generation)

    def _start_engine(self) -> None:
        self._require_one_thread()
        command = self._engine_command
        pid = os.fork()
        if pid == 0:
            self._in_child(lambda: self._exec(command))
        self._engine_pid = pid

    def _exec(self, command: EngineCommand) -> NoReturn:
        for descriptor in command.descriptors:
            os.set_inheritable(descriptor, True)
        os.execv(command.argv[0], list(command.argv))

    def _in_child(self, action: Callable[[], int]) -> NoReturn:
        """Become a child of the pool, act, and leave without ever returning into the parent's frames."""
        code = ExitCode.CANNOT_START
        try:
            os.setsid()
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self._pid:  # the parent died before the line above
                os._exit(ExitCode.CANNOT_START)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            code = action()
        except BaseException:
            log.exception("a child of the pool failed to start")
        finally:
            logging.shutdown()
            sys.stderr.flush()
            os._exit(code)

    def _require_one_thread(self) -> None:
        """A fork copies only the calling thread; locks that others hold would stay locked for ever."""
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            raise RuntimeError(f"the supervisor must have one thread when it forks, not {threads}")

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
                self._on_engine_exit(code)
            elif pid in self._workers:
                self._on_worker_exit(self._workers.pop(pid), pid, code)

    def _on_worker_exit(self, slot: int, pid: int, code: int) -> None:
        self._board.slot(slot).vacate()
        if self._phase is not _Phase.RUNNING:
            if not self._workers:
                self._stop_engine()
            return
        if code == ExitCode.CANNOT_START:
            log.error("API server %d (pid %d) could not start; stopping the pool", slot, pid)
            self._abandon(ExitCode.CANNOT_START)
            return
        self._board.count_death()
        log.warning("API server %d (pid %d) died (%s); replacing it", slot, pid, _how(code))
        now = time.monotonic()
        self._deaths = [death for death in self._deaths if now - death < _CRASH_LOOP_SECONDS] + [now]
        if len(self._deaths) >= _CRASH_LOOP_DEATHS + self._board.count:
            log.error(
                "%d API servers died within %.0f s: a crash loop; stopping", len(self._deaths), _CRASH_LOOP_SECONDS
            )
            self._abandon(ExitCode.CRASH_LOOP)
            return
        self._fork_worker(slot)

    def _on_engine_exit(self, code: int) -> None:
        if self._phase is not _Phase.RUNNING:
            self._engine_status.mark_dead()
            return
        was_ready = self._engine_status.is_ready
        self._engine_status.mark_dead()
        if was_ready:
            log.error("the engine core died (%s); every waiting request is answered with an error", _how(code))
            self._abandon(ExitCode.ENGINE_DIED)
        else:
            log.error("the engine core could not start (%s); stopping", _how(code))
            self._abandon(ExitCode.CANNOT_START)

    # ---- the end ----

    def _on_stop_signal(self) -> None:
        if self._phase is _Phase.RUNNING:
            log.info("draining: no new connections, %.0f s for running requests", self._drain.timeout)
            self._board.set_draining()
            if self._drain.delay > 0:
                self._phase, self._deadline = _Phase.DELAYING, time.monotonic() + self._drain.delay
            else:
                self._shut_door(self._drain.timeout)
        else:
            log.info("second signal: stopping at once")
            self._shut_door(0.0)

    def _abandon(self, code: ExitCode) -> None:
        """Stop the pool because of a fault, with just enough time to tell everybody."""
        self._exit_code = code
        self._board.set_draining()
        self._shut_door(_LAST_WORDS_SECONDS)

    def _shut_door(self, seconds: float) -> None:
        """Refuse new connections for every holder of the socket, and tell the workers to finish."""
        self._phase, self._deadline = _Phase.DRAINING, time.monotonic() + seconds + _KILL_GRACE_SECONDS
        for listener in self._listeners:
            try:
                listener.shutdown(socket.SHUT_RDWR)
            except OSError:  # it has been shut before
                continue
        self._signal_workers(signal.SIGTERM)
        if not self._workers:
            self._stop_engine()

    def _stop_engine(self) -> None:
        self._phase, self._deadline = _Phase.STOPPING_ENGINE, time.monotonic() + _ENGINE_STOP_SECONDS
        if self._engine_pid is not None:
            os.kill(self._engine_pid, signal.SIGTERM)

    def _signal_workers(self, number: int) -> None:
        for pid in self._workers:
            os.kill(pid, number)

    def _janitor(self) -> None:
        """Everything that is due by time."""
        if self._phase is _Phase.RUNNING:
            self._say_ready()
        if self._deadline is None or time.monotonic() < self._deadline:
            return
        self._deadline = None
        match self._phase:
            case _Phase.DELAYING:
                self._shut_door(self._drain.timeout)
            case _Phase.DRAINING:
                log.warning("%d API servers did not stop in time; killing them", len(self._workers))
                self._signal_workers(signal.SIGKILL)
            case _Phase.STOPPING_ENGINE:
                if self._engine_pid is not None:
                    log.warning("the engine core did not stop in time; killing it")
                    os.kill(self._engine_pid, signal.SIGKILL)
            case _Phase.RUNNING:
                pass

    def _say_ready(self) -> None:
        if self._said_ready or not self._engine_status.is_ready:
            return
        if all(slot.state is WorkerState.READY for slot in self._board.slots):
            self._said_ready = True
            self._on_ready()


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
