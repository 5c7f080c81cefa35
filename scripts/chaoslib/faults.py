"""What is done to a pool, and when: a schedule by seed, and the hands that carry it out."""

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol

from chaoslib import victims
from chaoslib.findings import Findings
from chaoslib.victims import Doomed

_GAP_SECONDS = (1.0, 4.0)
_GOOD_SECONDS = 12.0  # longer than the pool is patient

LOCAL: Mapping[str, int] = {
    "API server, SIGKILL": 10,
    "API server, SIGTERM": 5,
    "API server, stopped for a while": 4,
    "API server, stopped for good": 2,
    "every API server, SIGKILL": 1,
    "engine, SIGKILL": 4,
    "engine, SIGTERM": 1,
    "engine, stopped for a while": 3,
    "engine, stopped for good": 1,
    "engine, stall": 1,
    "engine, hang": 1,
    "engine, crash": 2,
    "SIGHUP": 3,
    "one API server more": 3,
    "one API server fewer": 3,
}
REMOTE: Mapping[str, int] = {
    "API server, SIGKILL": 3,
    "network, stands still for a while": 4,
    "network, cut": 2,
    "network, reset": 4,
    "engine, SIGKILL": 3,
    "engine, stopped for a while": 2,
    "SIGHUP": 1,
}


@dataclass(frozen=True, slots=True)
class Planned:
    """`at` seconds after the beginning; `number` chooses the victim, `length` is from 0 to 1."""

    at: float
    kind: str
    number: int
    length: float


def plan(rng: Random, kinds: Mapping[str, int], seconds: float) -> list[Planned]:
    """The first of a run that is long enough are all kinds, in some order; then by their weights."""
    order = list(kinds)
    rng.shuffle(order)
    planned: list[Planned] = []
    at = 2.0
    while at < seconds:
        kind = order.pop() if order else rng.choices(list(kinds), list(kinds.values()))[0]
        planned.append(Planned(at, kind, rng.randrange(1000), rng.random()))
        at += rng.uniform(*_GAP_SECONDS) * (2.0 if kind.startswith("engine") else 1.0)
    return planned


def _a_while(planned: Planned) -> float:
    """Shorter than the pool's patience with any of its processes."""
    return 0.3 + 2.0 * planned.length


class Place(Protocol):
    """What the hands need of a site."""

    name: str
    supervisor: int
    doomed: Doomed

    def engine_pids(self) -> list[int]: ...
    async def restart_engine(self) -> None: ...
    async def disturb(self, trouble: str) -> None: ...
    async def network(self, word: str) -> None: ...


class Hands:
    """Do to a site what is planned."""

    def __init__(self, place: Place, seen: Findings) -> None:
        self._place = place
        self._seen = seen
        self._later: set[asyncio.Task[None]] = set()

    async def carry_out(self, planned: list[Planned], until: asyncio.Event) -> None:
        """In that order and with those gaps; what takes long to do, moves all that follows."""
        before = 0.0
        for each in planned:
            try:
                await asyncio.wait_for(until.wait(), each.at - before)
                break
            except TimeoutError:
                self._seen.fault(self._place.name, each.kind)
                await self._do(each)
                before = each.at
        await asyncio.gather(*self._later)

    async def _do(self, planned: Planned) -> None:
        what, _, how = planned.kind.partition(", ")
        if what == "API server":
            self._to_api_server(planned, how)
        elif what == "every API server":
            for pid in victims.api_servers(self._place.supervisor):
                self._kill(pid)
        elif what == "engine":
            await self._to_engine(planned, how)
        elif what == "network":
            self._start(self._to_network(planned, how))
        else:
            number = {"SIGHUP": signal.SIGHUP, "one API server more": signal.SIGTTIN}.get(what, signal.SIGTTOU)
            victims.send(self._place.supervisor, number)

    def _to_api_server(self, planned: Planned, how: str) -> None:
        pids = victims.api_servers(self._place.supervisor)
        if not pids:
            return
        pid = pids[planned.number % len(pids)]
        if how == "SIGKILL":
            self._kill(pid)
        elif how == "SIGTERM":
            victims.send(pid, signal.SIGTERM)
        else:
            for_good = how.endswith("good")
            if victims.stop(pid) and for_good:
                self._place.doomed.add(pid)
            self._start(self._go_on(pid, _GOOD_SECONDS if for_good else _a_while(planned)))

    def _kill(self, pid: int) -> None:
        """Stopped first, so that it is known whose connections end; nothing else can tell the difference."""
        if victims.stop(pid):
            self._place.doomed.add(pid)
            victims.send(pid, signal.SIGKILL)

    async def _to_engine(self, planned: Planned, how: str) -> None:
        if how in ("stall", "hang", "crash"):
            await self._place.disturb(how)
            return
        for pid in self._place.engine_pids():
            if how.startswith("stopped"):
                victims.send(pid, signal.SIGSTOP)
                self._start(self._go_on(pid, _GOOD_SECONDS if how.endswith("good") else _a_while(planned)))
            else:
                victims.send(pid, signal.SIGKILL if how == "SIGKILL" else signal.SIGTERM)
                await self._place.restart_engine()

    async def _to_network(self, planned: Planned, how: str) -> None:
        if how == "reset":
            await self._place.network("reset")
            return
        await self._place.network("cut")
        await asyncio.sleep(_a_while(planned) if how.endswith("while") else 6.0 + 4.0 * planned.length)
        await self._place.network("heal")

    def _start(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.ensure_future(work)
        self._later.add(task)

    async def _go_on(self, pid: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        victims.send(pid, signal.SIGCONT)
