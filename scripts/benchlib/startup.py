"""How long our pool takes to start, and how far behind its engine the API servers are."""

import asyncio
import re
from pathlib import Path
from time import perf_counter

import psutil

from benchlib.client import Connection, JsonClient, Target
from benchlib.errors import PoolError
from benchlib.parsing import ReplyError
from benchlib.pool import OwnPool
from engine_bridge.status import EngineRow, Field

_LOOK_SECONDS = 0.002
_DEADLINE_SECONDS = 300.0
_SERVER_UP = re.compile(rb'^apiserver:api_server_up\{slot="\d+"\} 1', re.MULTILINE)
_ENGINE_UP = re.compile(rb"^apiserver:engine_up 1", re.MULTILINE)


async def measure(pool: OwnPool, target: Target, *, api_server_count: int | None) -> dict[str, float]:
    """Seconds from the command until all serve, and from when the engine was loaded until then; of a pool that listens.

    /metrics is asked and not /ready, which is true as soon as one API server is there; and not the line that the
    supervisor prints, which comes at its next tick.
    """
    ready_at = await _wait_until_all_serve(target, api_server_count)
    times = {"command_to_ready": ready_at - pool.started_at}
    loaded_at = await _engine_loaded_at(target)
    if loaded_at is not None:
        times["engine_to_ready"] = ready_at - loaded_at
    return times


async def _wait_until_all_serve(target: Target, api_server_count: int | None) -> float:
    request = target.request("GET", "/metrics")
    deadline = perf_counter() + _DEADLINE_SECONDS
    while perf_counter() < deadline:
        # The first connection waits in the kernel's queue until an API server is there to take it.
        connection = await Connection.open(target)
        try:
            while connection.is_open and perf_counter() < deadline:
                reply = await connection.send(request, timeout_seconds=_DEADLINE_SECONDS)
                if _all_serve(reply.document, api_server_count):
                    return reply.ended_at
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await connection.close()
    raise PoolError("not all API servers were ready in time")


def _all_serve(metrics: bytes, api_server_count: int | None) -> bool:
    slots = metrics.count(b"apiserver:api_server_up{")
    return (
        slots == (api_server_count or slots) > 0
        and len(_SERVER_UP.findall(metrics)) == slots
        and _ENGINE_UP.search(metrics) is not None
    )


async def _engine_loaded_at(target: Target) -> float | None:
    """When the engine core was loaded, on perf_counter's clock (on Linux it is monotonic_ns's); None if it cannot be
    told."""
    try:
        async with JsonClient(target) as http:
            _, document = await http.get("/pool")
        since = _ready_since(int(document["engine"]["pid"]))
    except (OSError, ValueError, KeyError, TypeError, ReplyError, psutil.Error):
        return None
    return since / 1e9 if since else None


def _ready_since(pid: int) -> int:
    """From the engine core's row of shared memory, by the descriptor that the core was given."""
    arguments = psutil.Process(pid).cmdline()
    descriptor = arguments[arguments.index("--status-fd") + 1]
    with Path(f"/proc/{pid}/fd/{descriptor}").open("r+b") as row:
        return EngineRow.attach(row.fileno()).get(Field.READY_SINCE)
