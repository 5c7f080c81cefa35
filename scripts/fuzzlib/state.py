"""What must be true of the pool after every batch, whatever was sent."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.request import urlopen

_IDLE_SECONDS = 60.0  # the longest that what was begun may take to end


@dataclass(frozen=True, slots=True)
class State:
    """One look at /pool."""

    pids: tuple[int, ...]
    deaths: int
    epoch: int
    busy: int
    """Requests that are being answered or computed, without the one that looks."""
    connections: int
    """Without the one that looks."""
    uss: dict[str, int]


async def document_of(url: str, path: str) -> Any:
    return json.loads(await asyncio.to_thread(_get, url + path))


def _get(url: str) -> bytes:
    with urlopen(url, timeout=30.0) as response:
        return response.read()


async def look(url: str) -> State:
    document = await document_of(url, "/pool")
    workers, engine = document["processes"], document["engine"]
    return State(
        pids=(document["supervisor"]["pid"], *(one["pid"] for one in workers), engine["pid"]),
        deaths=document["api_server_deaths"],
        epoch=engine["epoch"],
        busy=sum(one["in_flight"] + one["engine_requests"] for one in workers)
        - 1
        + engine["running"]
        + engine["waiting"],
        connections=sum(one["connections"] for one in workers) - 1,
        uss={
            **{f"api-{one['slot']}": one.get("uss_bytes", 0) for one in workers},
            "engine": engine.get("uss_bytes", 0),
        },
    )


async def idle(url: str) -> State:
    """The state once nothing is busy and no connection open; or as it is after a minute of waiting for that."""
    end = monotonic() + _IDLE_SECONDS
    while True:
        state = await look(url)
        if (state.busy <= 0 and state.connections <= 0) or monotonic() > end:
            return state
        await asyncio.sleep(0.05)


def faults(before: State, after: State) -> Iterator[str]:
    """What has changed that must not."""
    if after.pids != before.pids or after.deaths or after.epoch != before.epoch:
        yield f"a process died: {before.pids} are now {after.pids}"
    if after.busy > 0:
        yield f"{after.busy} requests have no end"
    if after.connections > 0:
        yield f"{after.connections} connections are still open"
