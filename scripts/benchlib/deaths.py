"""Outages, measured: who is told, when, and when service is back after a process was killed or stopped under load."""

import argparse
import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from time import perf_counter
from typing import Any

import msgspec

from benchlib import pool, program
from benchlib.arguments import add_outcome, add_server, list_of, positive
from benchlib.client import Connection, Reply, Target
from benchlib.errors import PoolError
from benchlib.pool import OwnPool, PoolSpec
from benchlib.report import number, table
from benchlib.stats import medians

_WAYS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
_LOOK_SECONDS = 0.005
_DEADLINE_SECONDS = 120.0
_OUTPUT_TOKENS = 100_000  # more than anybody waits for


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="bench_deaths", description="Outages after a death, under open streams.")
    add_server(parser, model="sim", tokenizer="byte")
    group = parser.add_argument_group("measurement")
    group.add_argument("--victims", type=list_of(str), default=["engine", "api-server"], help="engine, api-server")
    group.add_argument("--ways", type=list_of(str), default=list(_WAYS), help=f"default {','.join(_WAYS)}")
    group.add_argument("--streams", type=positive, default=64, metavar="N", help="open meanwhile (default 64)")
    add_outcome(parser, plots=False)
    options = parser.parse_args(arguments)
    if options.url is not None:
        parser.error("only a pool of our own is killed")
    options.api_server_count = options.api_server_count or 4
    options.engine_args = options.engine_args or ("--step-ms", "20", "--max-model-len", str(2 * _OUTPUT_TOKENS))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    return program.run("bench_deaths", parse(arguments), bench, render=render)


async def bench(options: argparse.Namespace) -> program.Document:
    """Each victim in each way, in a pool of its own."""
    rows: list[dict[str, Any]] = []
    for victim in options.victims:
        for way in options.ways:
            runs = [await _measure(options, victim, way) for _ in range(options.repeat)]
            rows.append({"victim": victim, "way": way, "median": medians(runs), "runs": runs})
    return {"rows": rows}


async def _measure(options: argparse.Namespace, victim: str, way: str) -> dict[str, Any]:
    spec = PoolSpec.of(options, api_server_count=options.api_server_count)
    async with pool.started(spec) as own, AsyncExitStack() as stack:
        outage = _Outage(own, options, stack)
        streams = await outage.open_streams()
        try:
            return await (outage.of_engine if victim == "engine" else outage.of_api_server)(_WAYS[way], streams)
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)


class _Outage:
    """One pool, and what happens to it."""

    def __init__(self, own: OwnPool, options: argparse.Namespace, stack: AsyncExitStack) -> None:
        self._target = Target.parse(own.url, api_key=options.api_key)
        self._options = options
        self._stack = stack

    async def open_streams(self) -> list[asyncio.Task[Reply]]:
        body = {
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": _OUTPUT_TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        request = self._target.request("POST", "/v1/chat/completions", body=msgspec.json.encode(body))
        connections = [await self._connect() for _ in range(self._options.streams)]
        sends = (connection.send(request, timeout_seconds=_DEADLINE_SECONDS) for connection in connections)
        streams = [asyncio.create_task(send) for send in sends]
        watcher = await self._connect()

        async def all_run() -> bool:
            return (await self._pool(watcher))["engine"]["running"] == len(streams)

        await _until(all_run)
        return streams

    async def of_engine(self, number: signal.Signals, streams: list[asyncio.Task[Reply]]) -> dict[str, Any]:
        probes = [await self._connect() for _ in range(self._options.api_server_count)]
        pid = (await self._pool(probes[0]))["engine"]["pid"]
        began = perf_counter()
        os.kill(pid, number)
        told = await asyncio.gather(*(self._status(probe, 503) for probe in probes))
        ends = [reply.ended_at for reply in await asyncio.gather(*streams)]
        well = await asyncio.gather(*(self._status(probe, 200) for probe in probes))
        return {
            "ended": len(ends),
            "to_503": max(told) - began,
            "to_error": max(ends) - began,
            "to_service": max(well) - began,
        }

    async def of_api_server(self, number: signal.Signals, streams: list[asyncio.Task[Reply]]) -> dict[str, Any]:
        watcher = await self._connect()
        document = await self._pool(watcher)
        victim = next(process for process in document["processes"] if process["slot"] != document["answered_by"])
        began = perf_counter()
        os.kill(victim["pid"], number)

        async def is_replaced() -> bool:
            processes = (await self._pool(watcher))["processes"]
            serving = [process["pid"] for process in processes if process["state"] == "ready"]
            return len(serving) == self._options.api_server_count and victim["pid"] not in serving

        await _until(is_replaced)
        replaced = perf_counter() - began
        ends = [stream.result().ended_at - began for stream in streams if stream.done()]
        return {"ended": len(ends), "to_error": max(ends, default=None), "to_service": replaced}

    async def _connect(self) -> Connection:
        connection = await Connection.open(self._target)
        self._stack.push_async_callback(connection.close)
        return connection

    async def _status(self, probe: Connection, status: int) -> float:
        """When /health first said so, on this API server."""
        request = self._target.request("GET", "/health")
        at = 0.0

        async def says_so() -> bool:
            nonlocal at
            reply = await probe.send(request, timeout_seconds=_DEADLINE_SECONDS)
            at = reply.ended_at
            return reply.status == status

        await _until(says_so)
        return at

    async def _pool(self, connection: Connection) -> dict[str, Any]:
        reply = await connection.send(self._target.request("GET", "/pool"), timeout_seconds=_DEADLINE_SECONDS)
        if reply.failure is not None:
            raise PoolError(f"GET /pool: {reply.failure}")
        return msgspec.json.decode(reply.document)


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Raises PoolError if it does not come true in time."""
    deadline = perf_counter() + _DEADLINE_SECONDS
    while not await condition():
        if perf_counter() > deadline:
            raise PoolError(f"the outage took longer than {_DEADLINE_SECONDS:.0f} s")
        await asyncio.sleep(_LOOK_SECONDS)


def render(document: program.Document) -> str:
    """The document as a Markdown table."""
    rows = [
        [
            f"{row['victim']}, {_WAYS[row['way']].name}",
            f"{row['median']['ended']:.0f} of {document['settings']['streams']}",
            *(number(row["median"].get(key)) for key in ("to_503", "to_error", "to_service")),
        ]
        for row in document["rows"]
    ]
    header = ["what, and how", "streams that ended", "to 503, s", "to error, s", "to service, s"]
    return table(header, rows)
