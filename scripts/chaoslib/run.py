"""A run: sites beside each other, each with clients, a schedule of faults and somebody who watches."""

import argparse
import asyncio
import logging
import os
import uuid
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from random import Random
from time import monotonic
from typing import Any

from benchlib.flatness import flatness
from benchlib.report import Progress

from chaoslib import faults, fixed, site, victims
from chaoslib.ask import Ask, Expected
from chaoslib.faults import Hands
from chaoslib.findings import Findings
from chaoslib.generating import DIALECTS, Generating, calm
from chaoslib.site import KEYS, Site
from chaoslib.words import Texts

_CLIENTS = {"generate": 14, "embed": 4, "remote": 5}
_API_SERVERS = {"generate": 4, "embed": 2, "remote": 2}
_MEMORY_SECONDS = 5.0
_LOOK_SECONDS = 0.2

log = logging.getLogger("chaos")


async def chaos(options: argparse.Namespace) -> dict[str, Any]:
    """The document: what was asked, done and found."""
    if options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
    marker = uuid.uuid4().hex
    os.environ[victims.MARKER] = marker
    seen = Findings()
    seconds = options.minutes * 60.0
    async with AsyncExitStack() as stack:
        entered = [
            stack.enter_async_context(site.running(name, seen, api_server_count=_API_SERVERS[name], logs=options.logs))
            for name in options.sites
        ]
        sites = [await each for each in entered]
        seen.began = monotonic()
        with Progress("chaos", total=None, duration_seconds=seconds) as progress:
            await asyncio.gather(*(_Trial(each, seen, options.seed, seconds, progress).run() for each in sites))
    if options.logs is not None:
        seen.keep_story(options.logs)
    for process in await _left_behind(marker):
        seen.found("machine", f"a process was left behind: {process}")
    return _document(seen)


async def _left_behind(marker: str) -> list[str]:
    """After a moment for the kernel to end what must end with its parent."""
    for _ in range(20):
        if not (left := victims.left_behind(marker)):
            return []
        await asyncio.sleep(0.1)
    return left


def _document(seen: Findings) -> dict[str, Any]:
    memory = {
        name: {kind: flatness([reading[kind] for _, reading in series]) for kind in victims.MEASURED}
        for name, series in seen.memory.items()
    }
    for name, kinds in memory.items():
        for kind, figures in kinds.items():
            if figures["is_flat"] is False:
                seen.found(name, f"the memory of the {kind}, grows: {figures}")
    outcomes: dict[str, dict[str, int]] = {}
    for (dialect, outcome), count in sorted(seen.outcomes.items()):
        outcomes.setdefault(dialect, {})[outcome] = count
    return {
        "requests": sum(seen.outcomes.values()),
        "outcomes": outcomes,
        "faults": seen.outages(),
        "slowest_seconds": seen.slowest,
        "memory": memory,
        "memory_readings": {
            name: [{"seconds": at - seen.began, **reading} for at, reading in series]
            for name, series in seen.memory.items()
        },
        "findings": seen.findings,
    }


class _Trial:
    """One site's."""

    def __init__(self, place: Site, seen: Findings, seed: int, seconds: float, progress: Progress) -> None:
        self._place = place
        self._seen = seen
        self._seed = seed
        self._seconds = seconds
        self._progress = progress
        self._tasks: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()
        self._mended = asyncio.Event()  # nothing more is broken; clients go on

    def _rng(self, what: object) -> Random:
        return Random(f"{self._seed}/{self._place.name}/{what}")

    async def run(self) -> None:
        """To the end, whatever happens: a failure of our own is a finding too."""
        try:
            await self._try()
        except Exception as error:
            log.exception("the trial of %s failed", self._place.name)
            self._seen.found(self._place.name, f"the trial itself failed: {error!r}")
        finally:
            self._mended.set()
            self._over.set()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _try(self) -> None:
        asks = await self._fixed_asks()
        planned = faults.plan(self._rng("faults"), self._kinds(), self._seconds)
        clients = [self._start(self._client(number, asks)) for number in range(_CLIENTS[self._place.name])]
        watchers = [self._start(watch()) for watch in (self._watch_strength, self._watch_memory)]
        hands = self._start(Hands(self._place, self._seen).carry_out(planned, self._mended))
        await asyncio.sleep(self._seconds)
        self._mended.set()
        await hands
        await self._place.settle()
        self._over.set()
        await asyncio.gather(*clients, *watchers)
        await self._calm(asks)
        await self._place.quieten()

    def _kinds(self) -> Mapping[str, int]:
        if self._place.name == "remote":
            return faults.REMOTE
        by_prompt = ("stall", "hang", "crash") if self._place.name == "embed" else ()  # its prompts set off none
        return {kind: weight for kind, weight in faults.LOCAL.items() if kind.split(", ")[-1] not in by_prompt}

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def _fixed_asks(self) -> list[Ask]:
        """With what they are answered now, before anything is broken."""
        task = "embed" if self._place.name == "embed" else "generate"
        complete: list[Ask] = []
        client = self._place.client(self._rng("fixed"))
        for ask in fixed.asks(task, self._rng("fixed texts")):
            said = await client.learn(ask)
            if said is not None:
                complete.append(replace(ask, expected=Expected(said.texts)))
        await client.close()
        return complete

    async def _client(self, number: int, asks: list[Ask]) -> None:
        rng = self._rng(number)
        texts = Texts(rng, f"{self._place.name}-{self._seed}-{number}")
        generating = Generating(rng, texts)

        def next_ask() -> Ask:
            self._progress.advance()
            only_fixed = self._place.name == "embed"
            return rng.choice(asks) if only_fixed or rng.random() < 0.15 else generating.next()

        await self._place.client(rng, KEYS[number % len(KEYS)]).run(next_ask, self._over)

    async def _watch_strength(self) -> None:
        strengths = self._seen.strengths.setdefault(self._place.name, [])
        while not self._over.is_set():
            began = monotonic()
            strengths.append((began, await self._place.is_whole()))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _watch_memory(self) -> None:
        series = self._seen.memory.setdefault(self._place.name, [])
        while not self._over.is_set():
            series.append((monotonic(), victims.memory(self._place.supervisor, self._place.engine_pids())))
            await asyncio.sleep(_MEMORY_SECONDS)

    async def _calm(self, asks: list[Ask]) -> None:
        """Nothing is broken any more: normal requests must succeed, whichever API server takes them."""
        texts = Texts(self._rng("calm"), f"{self._place.name}-{self._seed}-calm")
        normal = asks
        if self._place.name != "embed":
            normal = [
                calm(dialect, texts.short(), stream=stream) for dialect in DIALECTS for stream in (False, True)
            ] * 2
        client = self._place.client(self._rng("calm client"))
        for ask in normal:
            verdict = await client.do(ask)
            if verdict.outcome != "ok":
                self._seen.found(self._place.name, f"{ask.name}: {verdict.outcome} after all was mended")
        await client.close()
