"""The engine core as the supervisor has it: start, watch, start again.

A core is found to be dead in three ways: its process ends; its loop does not turn (no heartbeat); it has work and gives
nothing (no progress). In each the row says so at once, which tells every API server, and what is left of the process
and its children is killed. Every incarnation is an epoch of its own, with an address of its own: what was meant for a
dead one reaches nobody. Standard library only: whoever calls this forks.
"""

import contextlib
import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from apiserver import child
from apiserver.config import EngineCare
from apiserver.exit_code import ExitCode
from apiserver.stillness import MOST_SECONDS_A_LOOK, Stillness

_MOST_BACKOFF_SECONDS = 30.0
_FORK_RETRY_SECONDS = 1.0
_FIRST_WORD_SECONDS = 4.0  # of loading; then at twice that, and so on
_GROUP_SECONDS = 10.0  # for what the dead core has started to be gone too, before its successor wants the same memory

log = logging.getLogger("apiserver.engine")


class EngineStatus(Protocol):
    """What the supervisor reads and writes of the engine's row."""

    @property
    def is_ready(self) -> bool: ...

    @property
    def has_been_ready(self) -> bool: ...

    @property
    def stage(self) -> str: ...

    @property
    def heartbeat(self) -> int: ...

    @property
    def last_output(self) -> int: ...

    def begin(self, epoch: int) -> None: ...

    def mark_dead(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """How to exec the engine core, and which descriptors it inherits."""

    argv: Sequence[str]
    descriptors: Sequence[int]


class EngineKeeper:
    """`start` once, then `tend` often; `on_exit` when its process was reaped."""

    def __init__(
        self,
        command: Callable[[int], EngineCommand],
        row: EngineStatus,
        care: EngineCare,
        *,
        blocked: Collection[signal.Signals],
    ) -> None:
        self._command = command  # of an epoch
        self._row = row
        self._care = care
        self._blocked = blocked
        self._epoch = 0
        self._group = 0  # the process group of the last incarnation
        self._deaths: deque[float] = deque()  # when, within the window
        self._due: float | None = None  # when to start the next one
        self._died_at: float | None = None  # and no successor has served since
        self._is_condemned = False  # we have killed it, and wait for its end
        self._beat, self._output = Stillness(), Stillness()
        self._seconds_loading, self._next_word = 0.0, _FIRST_WORD_SECONDS
        self.pid: int | None = None
        """Of the process, while there is one."""

    def start(self, now: float) -> None:
        """A new incarnation, now or (where there can be no process now) a little later."""
        command = self._command(self._epoch + 1)
        self._row.begin(self._epoch + 1)
        try:
            pid = child.fork(lambda: child.exec_program(command.argv, command.descriptors), blocked=self._blocked)
        except OSError as error:
            self._row.mark_dead()
            self._due = now + _FORK_RETRY_SECONDS
            log.error("cannot fork the engine core: %s; trying again", error)
            return
        self._epoch += 1
        self.pid = self._group = pid
        self._due = None
        self._is_condemned = False
        self._beat, self._output = Stillness(), Stillness()
        self._seconds_loading, self._next_word = 0.0, _FIRST_WORD_SECONDS
        if self._epoch > 1:
            log.info("starting the engine core again (pid %d, epoch %d)", pid, self._epoch)

    # ---- while it should live ----

    def tend(self, now: float, seconds: float) -> None:
        """Start what is due, kill what is stuck. `seconds` have passed since the last call."""
        if self.pid is None:
            if self._due is not None and now >= self._due and self._may_follow(now):
                self.start(now)
            return
        self.watch(seconds)
        if self._died_at is not None and self._row.is_ready:
            log.info("the engine serves again, %.1f s after its death (epoch %d)", now - self._died_at, self._epoch)
            self._died_at = None

    def watch(self, seconds: float) -> None:
        """Kill it, with all that it started, if it will not answer any more."""
        if self.pid is None or self._is_condemned:
            return
        complaint = self._complaint(seconds)
        if complaint is None:
            return
        log.error("the engine core (pid %d) %s; killing it", self.pid, complaint)
        self._row.mark_dead()  # nobody has to wait for the end of the process
        self._is_condemned = True
        self.kill()

    def _complaint(self, seconds: float) -> str | None:
        row, care = self._row, self._care
        if not row.has_been_ready:
            self._seconds_loading += min(seconds, MOST_SECONDS_A_LOOK)
            self._tell_that_it_loads()
            if self._seconds_loading > care.load_seconds:
                return f"has not loaded in {care.load_seconds:.0f} s (--engine-load-timeout)"
            return None
        if self._beat.look(row.heartbeat, seconds) > care.heartbeat_seconds:
            return f"has a loop that has stood still for {care.heartbeat_seconds:.0f} s (--engine-heartbeat-timeout)"
        if self._output.look(row.last_output, seconds) > care.stall_seconds:
            return f"has work, and has given nothing for {care.stall_seconds:.0f} s (--engine-stall-timeout)"
        return None

    def _tell_that_it_loads(self) -> None:
        if self._seconds_loading >= self._next_word:
            self._next_word *= 2
            stage = f"{self._row.stage}, " if self._row.stage else ""
            log.info("the engine core is loading, %s%.0f s so far", stage, self._seconds_loading)

    def _may_follow(self, now: float) -> bool:
        if not self._group or child.group_is_gone(self._group):
            return True
        if self._died_at is not None and now - self._died_at < _GROUP_SECONDS:
            return False
        log.warning("what the dead engine core has started is not gone after %.0f s; going on", _GROUP_SECONDS)
        return True

    # ---- its end ----

    def on_exit(self, code: int, now: float) -> ExitCode | None:
        """Its process was reaped, unasked. Returns why the pool cannot go on; None if it will be started again."""
        had_served, is_first = self._row.has_been_ready, self._epoch == 1
        self.bury()
        how = child.how_it_ended(code)
        if is_first and not had_served:
            why = "did what it was asked (--help?) and ended" if code == 0 else f"could not start ({how})"
            log.error("the engine core %s; stopping", why)
            return ExitCode.CANNOT_START
        if had_served:
            log.error("the engine core died (%s); every waiting request is answered with an error", how)
        else:
            log.error("the engine core died (%s) before it was loaded", how)
        if self._care.restart == "never":
            return ExitCode.ENGINE_DIED
        self._died_at = self._died_at or now
        return self._plan_restart(now)

    def _plan_restart(self, now: float) -> ExitCode | None:
        deaths, care = self._deaths, self._care
        deaths.append(now)
        while deaths[0] < now - care.restart_window_seconds:
            deaths.popleft()
        if len(deaths) > care.restart_limit:
            log.error(
                "the engine core died %d times within %.0f s: a crash loop; stopping the pool",
                len(deaths),
                care.restart_window_seconds,
            )
            return ExitCode.CRASH_LOOP
        delay = 0.0 if len(deaths) == 1 else min(_MOST_BACKOFF_SECONDS, 2.0 ** (len(deaths) - 2))
        if delay:
            log.info("restart %d of at most %d, in %.0f s", len(deaths), care.restart_limit, delay)
        self._due = now + delay
        return None

    def bury(self) -> None:
        """Its process was reaped: say so, and let nothing that it started outlive it."""
        self._row.mark_dead()
        if self.pid is not None:
            child.kill_group(self.pid)
        self.pid = None

    @property
    def is_ready(self) -> bool:
        return self._row.is_ready

    @property
    def has_served(self) -> bool:
        """Whether the present incarnation has ever been ready."""
        return self._row.has_been_ready

    def ask_to_stop(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            child.kill_group(self.pid)
