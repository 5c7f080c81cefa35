"""The processes of a pool: found by their titles, and the client ports that each of them serves."""

import contextlib
import os
import signal
from dataclasses import dataclass, field
from time import monotonic

import psutil

MARKER = "APISERVER_CHAOS"
"""The variable that all processes of a run have in their environment."""


def children(supervisor: int) -> list[psutil.Process]:
    try:
        return psutil.Process(supervisor).children(recursive=True)
    except psutil.Error:
        return []


def role(process: psutil.Process) -> str:
    """`engine`, or `api` for what the supervisor has forked; empty if it is gone."""
    try:
        return "engine" if "engine_bridge" in process.cmdline() else "api"
    except psutil.Error:
        return ""


def api_servers(supervisor: int) -> list[int]:
    """The oldest first."""
    return sorted(process.pid for process in children(supervisor) if role(process) == "api" and not _is_dead(process))


def engines(supervisor: int) -> list[int]:
    return [process.pid for process in children(supervisor) if role(process) == "engine" and not _is_dead(process)]


def _is_dead(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def send(pid: int, number: signal.Signals) -> bool:
    """Whether there was somebody to send it to."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def stop(pid: int) -> bool:
    """SIGSTOP, and wait until it stands; whether it does."""
    if not send(pid, signal.SIGSTOP):
        return False
    until = monotonic() + 0.2
    with contextlib.suppress(psutil.Error):
        while psutil.Process(pid).status() != psutil.STATUS_STOPPED and monotonic() < until:
            pass  # microseconds, once it is scheduled
    return True


@dataclass(slots=True)
class Doomed:
    """Connections whose API server was killed: their clients' ports, and when."""

    _ports: dict[int, float] = field(default_factory=dict[int, float])

    def add(self, pid: int) -> None:
        """All that this process serves; it should stand still, so that it takes no more."""
        with contextlib.suppress(psutil.Error):
            for connection in psutil.Process(pid).net_connections("tcp"):
                if connection.raddr:
                    self._ports[connection.raddr.port] = monotonic()

    def has(self, port: int, *, opened: float) -> bool:
        return self._ports.get(port, -1.0) >= opened


def left_behind(marker: str) -> list[str]:
    """Processes of the pools that were started with this in their environment, and live."""
    found: list[str] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARKER) == marker and not _is_dead(process):
                found.append(f"{process.pid} ({' '.join(process.cmdline())[:60]})")
    return found


MEASURED = ("supervisor, USS", "engine, USS", "largest API server, USS", "largest API server, PSS")


def memory(supervisor: int, engine_pids: list[int]) -> dict[str, int]:
    """Bytes of their own (USS), and with a share of what is common (PSS); by `MEASURED`."""
    servers = api_servers(supervisor)
    own = {pid: _memory_of(pid) for pid in (supervisor, *engine_pids, *servers)}
    return {
        "supervisor, USS": own[supervisor][0],
        "engine, USS": max((own[pid][0] for pid in engine_pids), default=0),
        "largest API server, USS": max((own[pid][0] for pid in servers), default=0),
        "largest API server, PSS": max((own[pid][1] for pid in servers), default=0),
    }


def _memory_of(pid: int) -> tuple[int, int]:
    try:
        info = psutil.Process(pid).memory_full_info()
    except psutil.Error:
        return 0, 0
    return info.uss, info.pss
