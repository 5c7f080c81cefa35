"""The parent: one loop over signals and time. Standard library only: it forks, so it holds no loop, thread or library.

All signals that matter are blocked and taken one at a time by `sigtimedwait`; there is no handler to be reentrant
about. The API servers are `crew`'s, the engine core is `engine_keeper`'s; here is what concerns the pool: orders from
outside, faults that it cannot survive, and its end. `docs/signals.md` has the table of signals and exit codes.
"""

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from apiserver import child
from apiserver.board import MAX_SLOTS, Board, Cell
from apiserver.control import ControlSocket, Document
from apiserver.crew import Crew
from apiserver.engine_elsewhere import EngineElsewhere
from apiserver.engine_keeper import EngineKeeper
from apiserver.exit_code import ExitCode

SIGNALS = (
    signal.SIGCHLD,
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)
_TICK_SECONDS = 0.05
_ENGINE_STOP_SECONDS = 5.0
_LOADING_ENGINE_STOP_SECONDS = 1.0  # it has nobody to answer, and loading code may not listen
_ENGINE_DEATH_SECONDS = 2.0  # after it: idle clients that ask get a 503, and not a closed connection
_DRAIN_SLACK_SECONDS = 1.5
_END_SECONDS = 3.0  # for the error ends to leave, before SIGKILL

log = logging.getLogger("apiserver.supervisor")


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: `drain_delay` between "not ready" and shutting the door, `drain` for running requests."""

    drain_delay: float
    drain: float


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
        crew: Crew,
        engine: EngineKeeper | EngineElsewhere,
        control: ControlSocket,
        patience: Patience,
        *,
        about: Document,
        on_ready: Callable[[], None],
        reload: Callable[[], bool],
    ) -> None:
        self._board = board
        self._listeners = listeners
        self._crew = crew
        self._engine = engine
        self._control = control
        self._patience = patience
        self._about = about  # what it answers to whoever asks which pool this is
        self._on_ready = on_ready
        self._reload = reload
        self._phase = _Phase.RUNNING
        self._deadline: float | None = None
        self._exit_code = ExitCode.STOPPED
        self._said_ready = False
        self._last_tick = time.monotonic()

    def run(self) -> int:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would hide every death from waitpid
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        child.adopt_orphans()
        self._engine.start(time.monotonic())
        self._crew.tend(time.monotonic())
        while len(self._crew) or self._engine.pid is not None or self._is_serving:
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
                case signal.SIGTTIN:
                    self._on_resize_signal(+1)
                case signal.SIGTTOU:
                    self._on_resize_signal(-1)
                case _:
                    pass
            self._control.answer(self._on_order)
            self._janitor(time.monotonic())
        return self._exit_code

    @property
    def _is_serving(self) -> bool:
        return self._phase in (_Phase.RUNNING, _Phase.DELAYING)

    # ---- orders ----

    def _on_hangup(self) -> None:
        """Read again what may have changed, and replace the workers one by one; nobody's request fails by it."""
        if self._phase is _Phase.RUNNING and self._reload():
            log.info("SIGHUP: replacing %d API servers one by one", self._board.count)
            self._crew.replace_all()

    def _on_resize_signal(self, difference: int) -> None:
        refusal = self._resize(self._board.count + difference)
        if refusal is not None:
            log.warning("%s", refusal)

    def _resize(self, count: int) -> str | None:
        """Returns why not, if so."""
        before = self._board.count
        if self._phase is not _Phase.RUNNING:
            return "the pool is stopping"
        if not 1 <= count <= MAX_SLOTS:
            return f"there can be 1 to {MAX_SLOTS} API servers, not {count}"
        if count != before:
            log.info("%d API servers instead of %d", count, before)
            self._crew.resize(count)
            self._crew.tend(time.monotonic())
        return None

    def _on_order(self, order: Document) -> Document:
        if order.get("do") == "scale":
            count = order.get("count")
            refusal = self._resize(count) if type(count) is int else "scale to how many?"  # true is no number
            if refusal is not None:
                return {"error": refusal}
        return {
            "pid": os.getpid(),
            **self._about,
            "api_server_count": self._board.count,
            "serving": self._crew.serving,
            "leaving": self._crew.leaving,
        }

    # ---- children ----

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid == self._engine.pid:
                self._on_engine_exit(code)
            else:
                self._on_worker_exit(pid, code)

    def _on_worker_exit(self, pid: int, code: int) -> None:
        fault = self._crew.on_exit(pid, code, time.monotonic())
        if fault is not None:
            self._end(fault)
        elif self._is_serving:
            self._crew.tend(time.monotonic())
        elif self._phase is not _Phase.STOPPING_ENGINE and not len(self._crew):
            self._stop_engine()

    def _on_engine_exit(self, code: int) -> None:
        if self._phase is _Phase.RUNNING:
            fault = self._engine.on_exit(code, time.monotonic())
            if fault is ExitCode.CANNOT_START:
                self._end(fault)
            elif fault is not None:
                self._blame(fault)
                self._drain(_ENGINE_DEATH_SECONDS)  # nothing runs any more, so this takes no time
            return
        had_served = self._engine.has_served
        self._engine.bury()
        if had_served and self._phase is not _Phase.STOPPING_ENGINE:
            log.error("the engine core died (%s) while the pool was stopping", child.how_it_ended(code))
            self._blame(ExitCode.ENGINE_DIED)
            if self._phase is _Phase.DELAYING:
                self._drain(_ENGINE_DEATH_SECONDS)

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
        self._dismiss(signal.SIGTERM)

    def _end(self, code: ExitCode) -> None:
        """Stop now, with just enough time to tell everybody who waits. The first fault's code is the pool's."""
        self._blame(code)
        if self._phase in (_Phase.ENDING, _Phase.STOPPING_ENGINE):
            return
        self._phase, self._deadline = _Phase.ENDING, time.monotonic() + _END_SECONDS
        self._dismiss(signal.SIGQUIT)

    def _dismiss(self, number: signal.Signals) -> None:
        self._board.set_draining()
        for listener in self._listeners:
            with contextlib.suppress(OSError):  # it has been shut before
                listener.shutdown(socket.SHUT_RDWR)
        self._crew.disband()
        self._crew.signal(number)
        if not len(self._crew):
            self._stop_engine()

    def _blame(self, code: ExitCode) -> None:
        if self._exit_code is ExitCode.STOPPED:
            self._exit_code = code

    def _stop_engine(self) -> None:
        seconds = _ENGINE_STOP_SECONDS if self._engine.has_served else _LOADING_ENGINE_STOP_SECONDS
        self._phase, self._deadline = _Phase.STOPPING_ENGINE, time.monotonic() + seconds
        self._engine.ask_to_stop()

    # ---- what is due by time ----

    def _janitor(self, now: float) -> None:
        seconds, self._last_tick = now - self._last_tick, now
        if self._phase is _Phase.RUNNING:
            self._engine.tend(now, seconds)
            self._say_ready()
        elif self._phase is not _Phase.STOPPING_ENGINE:
            self._engine.watch(seconds)  # whoever is drained must not wait for a stuck engine
        if self._is_serving:
            self._crew.tend(now)
            fault = self._crew.check_liveness(seconds)
            if fault is not None:
                self._end(fault)
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
                log.warning("%d API servers did not stop in time; killing them", len(self._crew))
                self._crew.signal(signal.SIGKILL)
            case _Phase.STOPPING_ENGINE:
                if self._engine.has_served:
                    log.warning("the engine core did not stop in time; killing it")
                self._engine.kill()
            case _Phase.RUNNING:
                pass

    def _say_ready(self) -> None:
        if self._said_ready or not self._engine.is_ready:
            return
        if all(slot.is_serving and slot.get(Cell.ENGINE_EPOCH) for slot in self._board.slots):
            self._said_ready = True
            self._on_ready()
