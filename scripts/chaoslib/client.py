"""A client: asks one thing after the other on connections that it keeps, or does not, and judges every answer."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from random import Random

from chaoslib.ask import Ask, Said
from chaoslib.connection import Connection, Reply, closing
from chaoslib.findings import Findings
from chaoslib.verdict import Verdict, judge
from chaoslib.victims import Doomed

DEADLINE_SECONDS = 60.0
"""A request that has not ended by then hangs."""
_REST_SECONDS = (0.05, 0.4)  # after a refusal
_LOOK_SECONDS = 0.1  # between two looks at a response in the background
_PROBE = b"GET /live HTTP/1.1\r\nHost: pool\r\n\r\n"


class Client:
    """`rng` decides all it does but what to ask."""

    def __init__(self, site: str, address: tuple[str, int], key: str, rng: Random, seen: Findings, doomed: Doomed):
        self._site = site
        self._address = address
        self._key = key
        self._rng = rng
        self._seen = seen
        self._doomed = doomed
        self._connection: Connection | None = None

    async def run(self, next_ask: Callable[[], Ask], until: asyncio.Event) -> None:
        """Until the event, and to the end of what was begun."""
        try:
            while not until.is_set():
                verdict = await self.do(next_ask())
                if verdict.outcome not in ("ok", "left"):
                    await asyncio.sleep(self._rng.uniform(*_REST_SECONDS))
        finally:
            await self._drop()

    async def learn(self, ask: Ask) -> Said | None:
        """What is said to it now."""
        verdict, reply = await self._once(replace(ask, expected=None))
        self._note(ask, verdict, reply)
        return verdict.said

    async def close(self) -> None:
        """To be called by who calls `do`."""
        await self._drop()

    async def do(self, ask: Ask) -> Verdict:
        """One request, and those that follow from it; the last verdict."""
        while True:
            verdict, reply = await self._once(ask)
            self._note(ask, verdict, reply)
            if verdict.outcome != "ok" or ask.then is None or verdict.said is None:
                return verdict
            following = ask.then(reply, verdict.said)
            if following is None:
                return verdict
            if verdict.said.pending:
                if reply.ended - self._began > DEADLINE_SECONDS:
                    self._found(ask, "the response in the background does not end")
                    return verdict
                await asyncio.sleep(_LOOK_SECONDS)
            ask = following

    async def _once(self, ask: Ask) -> tuple[Verdict, Reply]:
        if ask.method == "POST":
            self._began = asyncio.get_running_loop().time()
        try:
            connection = await self._connected(ask)
        except OSError as error:  # a timeout too
            return Verdict("not connected", f"no connection: {error!r}"), Reply()
        request = ask.request("pool", self._key)
        probe = connection.send(_PROBE) if ask.pipelined else None
        waiting = connection.send(request, ask.leave_after)
        try:
            reply = await asyncio.wait_for(waiting, DEADLINE_SECONDS)
        except TimeoutError:
            connection.leave()
            return Verdict("hung", f"no end within {DEADLINE_SECONDS:.0f} s"), Reply()
        was_doomed = self._doomed.has(connection.port, opened=connection.opened)
        if probe is not None:
            first = probe.result()
            if not first.complete and not was_doomed:
                self._found(ask, "the pipelined probe before it was not answered")
            if first.closes and not reply.status:  # said before ours: it must be sent again (RFC 9112, 9.6)
                await self._drop()
                return Verdict("to be sent again"), reply
        if self._rng.random() < 0.3 or ask.pause_seconds or not reply.complete:
            await self._drop()
        return judge(ask, reply, was_doomed=was_doomed), reply

    async def _connected(self, ask: Ask) -> Connection:
        """The one that is kept, unless this request wants one of its own."""
        special = ask.pause_seconds > 0 or ask.leave_after is not None
        if self._connection is not None and (special or not self._connection.is_open):
            await self._drop()
        if self._connection is None:
            resets = ask.leave_after is not None and self._rng.random() < 0.5
            self._connection = await Connection.open(*self._address, pause_seconds=ask.pause_seconds, resets=resets)
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await closing(connection)

    def _note(self, ask: Ask, verdict: Verdict, reply: Reply) -> None:
        self._seen.outcomes[ask.name, verdict.outcome] += 1
        if reply.ended:
            self._seen.slowest = max(self._seen.slowest, reply.ended - reply.began)
        if verdict.outcome == "ok" and ask.generates:
            self._seen.successes.setdefault(self._site, []).append((reply.began, reply.ended))
        if verdict.finding is not None:
            self._found(ask, verdict.finding)

    def _found(self, ask: Ask, what: str) -> None:
        body = json.dumps(ask.body, ensure_ascii=False)
        self._seen.found(self._site, f"{ask.name}, {ask.method} {ask.path}: {what}; asked: {body[:300]}")
