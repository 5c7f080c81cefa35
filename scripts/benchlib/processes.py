"""Who used the CPU: the server by the part each process plays, the client, and everybody else.

A process's CPU is read from its own clock, in nanoseconds; /proc tells it in ticks of 10 ms, which is the error of many
a millisecond per request. Only what everybody else used is in ticks.
"""

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import clock_gettime, perf_counter, process_time
from typing import Any

import psutil

# How processes of our pool, of vLLM and of SGLang name themselves.
_TITLE = re.compile(r"^(?:(api-\d+|engine|supervisor)\b|(?:VLLM|sglang)::(\w+))")

_CPUCLOCK_SCHED = 2  # the kernel's name for the clock that counts both user and system time

Roles = Mapping[int, str]
"""What each process id is: `supervisor`, `api-0`…, `engine`, a peer's own name for it, or `other`."""


def roles_from_pool(document: Any) -> dict[int, str]:
    """Read what our `GET /pool` says: `{"processes": [{"role", "slot", "pid"}…], "engine": {"pid"}, …}`.

    What has no pid is left out, as is everything if the document is no such thing.
    """
    roles: dict[int, str] = {}
    if not isinstance(document, dict):
        return roles
    for process in document.get("processes") or []:
        pid, slot = process.get("pid"), process.get("slot")
        if pid:
            roles[pid] = f"api-{slot}" if slot is not None else str(process.get("role") or "other")
    for role in ("supervisor", "engine"):
        process = document.get(role)
        if isinstance(process, dict) and process.get("pid"):
            roles[process["pid"]] = role
    return roles


def roles_of_tree(known: Roles, *, root: int | None) -> dict[int, str]:
    """Add to the known processes all that descend from them and from `root`.

    What the engine starts is `engine` too; another unknown process is what its title says, or `other`. A root that
    neither `known` nor its title names is `supervisor` (of a server of one process, the whole server). We ourselves
    are never the server's, even if it was started by our own parent.
    """
    roots = dict(known)
    if root is not None:
        roots.setdefault(root, _role_by_title(root) or "supervisor")
    roles = dict(roots)
    for pid in sorted(roots, key=lambda pid: roots[pid] != "engine"):  # first the engine: its children are its own
        for child in _descendants(pid):
            roles.setdefault(child, "engine" if roots[pid] == "engine" else _role_by_title(child) or "other")
    return {pid: role for pid, role in roles.items() if psutil.pid_exists(pid) and pid != os.getpid()}


def _descendants(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def _role_by_title(pid: int) -> str | None:
    try:
        process = psutil.Process(pid)
        titles = [process.name(), *process.cmdline()[:1]]
    except psutil.Error:
        return None
    matches = [match for title in titles if (match := _TITLE.match(title))]
    return (matches[0][1] or matches[0][2]) if matches else None


@dataclass(frozen=True, slots=True)
class Reading:
    """The clocks at one moment: the wall's, our own CPU, the machine's busy CPU, and each server process's CPU."""

    at: float
    client_seconds: float
    machine_seconds: float
    server_seconds: Mapping[int, float]

    def joined(self, born: "Reading") -> "Reading":
        """This moment, with processes that were found out about a little later."""
        return replace(self, server_seconds={**born.server_seconds, **self.server_seconds})


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds between two readings. `gone` are processes whose last share died with them."""

    wall_seconds: float
    client_seconds: float
    server_seconds: Mapping[str, float]
    others_seconds: float
    gone: list[str]


def read(roles: Roles) -> Reading:
    """Take a reading; a process that is gone or is not ours to see is missing in it."""
    server: dict[int, float] = {}
    for pid in roles:
        with contextlib.suppress(OSError):
            server[pid] = clock_gettime(_cpu_clock(pid))
    machine = psutil.cpu_times()
    # Guests are counted in user and nice already; stolen time is nobody's here.
    busy = machine.user + machine.nice + machine.system + machine.irq + machine.softirq
    return Reading(perf_counter(), process_time(), busy, server)


def _cpu_clock(pid: int) -> int:
    """What clock_getcpuclockid(3) gives for any process (Python has it for threads only): all its threads, dead too."""
    return (~pid << 3) | _CPUCLOCK_SCHED


def spent(before: Reading, after: Reading, roles: Roles) -> Spent:
    """Compare two readings. A process only in the second was born in between, so all its CPU counts."""
    by_role: dict[str, float] = dict.fromkeys(sorted(set(roles.values()), key=_role_order), 0.0)
    for pid, seconds in after.server_seconds.items():
        by_role[roles[pid]] += seconds - before.server_seconds.get(pid, 0.0)
    client = after.client_seconds - before.client_seconds
    machine = after.machine_seconds - before.machine_seconds
    others = machine - client - sum(by_role.values())
    return Spent(
        wall_seconds=after.at - before.at,
        client_seconds=client,
        server_seconds=by_role,
        others_seconds=max(0.0, others),
        gone=[roles[pid] for pid in before.server_seconds if pid not in after.server_seconds],
    )


def _role_order(role: str) -> tuple[bool, int, str]:
    """API servers first, by slot and not by spelling."""
    slot = role.removeprefix("api-")
    is_slot = role != slot and slot.isdigit()
    return (not is_slot, int(slot) if is_slot else 0, role)
