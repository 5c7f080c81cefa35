"""A long run: what grows from request to request shows in the memory of some process.

The requests differ (prompt ids at random, lengths around the middle), half of them stream, and every twentieth client
leaves in the middle of its stream. Memory is read at the start, after each twentieth, and at the end, of every process.
"""

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from time import perf_counter
from typing import Any

import psutil

from benchlib import pool, processes, program
from benchlib.arguments import add_outcome, add_server, positive, positive_float
from benchlib.client import Connection, JsonClient
from benchlib.endpoints import find_model
from benchlib.flatness import RULE, flatness, verdict
from benchlib.meter import Meter
from benchlib.plot import Lines, Panel
from benchlib.pool import PoolSpec, Server
from benchlib.report import Progress, number, table

_READINGS = 20
_TIMEOUT_SECONDS = 120.0
_LEAVES_AFTER_BYTES = 400


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="soak", description="Many requests, and memory on the way.")
    add_server(parser, model="sim")
    what = parser.add_argument_group("requests")
    what.add_argument("--endpoint", choices=("completions", "embeddings"), default="completions")
    length = what.add_mutually_exclusive_group()
    length.add_argument("--requests", type=positive, default=20_000, metavar="N", help="default 20,000")
    length.add_argument("--minutes", type=positive_float, metavar="M", help="so long, instead of so many")
    what.add_argument("--concurrency", type=positive, default=64, metavar="N", help="default 64")
    what.add_argument("--input-tokens", type=positive, default=32, metavar="N", help="around so many (default 32)")
    what.add_argument("--output-tokens", type=positive, default=8, metavar="N", help="around so many (default 8)")
    what.add_argument("--seed", type=int, default=0, help="of the requests")
    add_outcome(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""

    def has_failed(document: program.Document) -> bool:
        return bool(document["failed"]) or any(each["is_flat"] is False for each in document["memory"].values())

    return program.run("soak", parse(arguments), bench, render=render, panels=panels, has_failed=has_failed)


async def bench(options: argparse.Namespace) -> program.Document:
    """All requests on one pool."""

    def spec() -> PoolSpec:
        return PoolSpec.of(options, api_server_count=options.api_server_count)

    async with pool.server(options, spec) as server, JsonClient(server.target) as http:
        model = (options.url and options.model) or await find_model(http)
        _, info = await http.get("/server_info")
        return await _Soak(options, server, http, model, vocab_size=int(info["vocab_size"])).run()


class _Soak:
    def __init__(
        self, options: argparse.Namespace, server: Server, http: JsonClient, model: str, *, vocab_size: int
    ) -> None:
        self._options = options
        self._server = server
        self._meter = Meter(server, http)
        self._model = model
        self._ids = range(vocab_size // 10, vocab_size * 9 // 10)  # control tokens are at the edges
        self._rng = random.Random(options.seed)
        self._sent = self._left = 0
        self._failures: dict[str, int] = {}
        self._readings: list[dict[str, Any]] = []
        self._began = 0.0

    async def run(self) -> dict[str, Any]:
        began = self._began = perf_counter()
        await self._read()
        minutes, requests = self._options.minutes, self._options.requests
        seconds = None if minutes is None else 60.0 * minutes
        total = requests if minutes is None else None
        with Progress("soak", total=total, duration_seconds=seconds) as progress:
            for part in range(1, _READINGS + 1):
                count = requests * part // _READINGS if seconds is None else sys.maxsize
                at = began + seconds * part / _READINGS if seconds is not None else inf
                clients = (self._client(count, at, progress) for _ in range(self._options.concurrency))
                await asyncio.gather(*clients)
                await self._read()
        return {
            "requests": self._sent,
            "left_in_the_middle": self._left,
            "failed": sum(self._failures.values()),
            "failures": self._failures,
            "requests_per_second": self._sent / (perf_counter() - began),
            "readings": self._readings,
            "memory": {role: flatness(self._series(role)) for role in self._readings[-1]["uss_bytes"]},
        }

    def _series(self, role: str) -> list[float]:
        return [each["uss_bytes"].get(role, 0) for each in self._readings]

    async def _read(self) -> None:
        roles = await self._meter.roles()
        memory: dict[str, int] = {}
        for pid, role in _named(roles).items():
            with suppress(psutil.Error):
                memory[role] = memory.get(role, 0) + psutil.Process(pid).memory_full_info().uss
        self._readings.append({"requests": self._sent, "seconds": perf_counter() - self._began, "uss_bytes": memory})

    async def _client(self, count: int, at: float, progress: Progress) -> None:
        """Until so many were sent by all, or until then."""
        connection: Connection | None = None
        while self._sent < count and perf_counter() < at:
            number_of = self._sent
            self._sent += 1
            streams = self._options.endpoint == "completions" and number_of % 2 == 1
            body = self._body(stream=streams)
            request = self._server.target.request("POST", f"/v1/{self._options.endpoint}", body=body)
            if streams and number_of % 20 == 1:
                await self._leave(request)
            else:
                if connection is None or not connection.is_open:
                    connection = await Connection.open(self._server.target)
                reply = await connection.send(request, timeout_seconds=_TIMEOUT_SECONDS)
                failure = reply.failure or (None if reply.status == 200 else f"status {reply.status}")
                if failure is not None:
                    self._failures[failure] = self._failures.get(failure, 0) + 1
            progress.advance()
        if connection is not None:
            await connection.close()

    def _body(self, *, stream: bool) -> bytes:
        options, rng = self._options, self._rng
        length = rng.randrange(max(1, options.input_tokens // 2), options.input_tokens * 2)
        prompt = rng.choices(self._ids, k=length)
        if options.endpoint == "embeddings":
            return json.dumps({"model": self._model, "input": prompt}).encode()
        tokens = rng.randrange(1, options.output_tokens * 2)
        document = {"model": self._model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
        return json.dumps(document).encode()

    async def _leave(self, request: bytes) -> None:
        """A client that reads the beginning of its stream, and is gone."""
        target = self._server.target
        reader, writer = await asyncio.open_connection(target.host, target.port, ssl=target.tls)
        writer.write(request)
        await asyncio.wait_for(reader.read(_LEAVES_AFTER_BYTES), _TIMEOUT_SECONDS)
        writer.close()
        self._left += 1


def _named(roles: processes.Roles) -> dict[int, str]:
    """The engine's own processes by their titles: the core and the scheduler are not one."""
    named = dict(roles)
    for pid, role in roles.items():
        with suppress(psutil.Error):
            title = " ".join(psutil.Process(pid).cmdline()[:1])
            if role == "engine" and title.startswith("sglang::"):
                named[pid] = title.removeprefix("sglang::")
    return named


def render(document: program.Document) -> str:
    """A row a reading, a column a process; below, whether each of them is flat."""
    readings = document["readings"]
    roles = list(readings[-1]["uss_bytes"])
    rows = [
        [number(each["seconds"]), str(each["requests"])]
        + [number(each["uss_bytes"].get(role, 0) / 1e6) for role in roles]
        for each in readings
    ]
    flat = [
        [role, *(number(figures[name] / 1e6) for name in ("early", "late", "most")), verdict(figures)]
        for role, figures in document["memory"].items()
        if "early" in figures
    ]
    head = f"{document['requests']} requests, {document['requests_per_second']:.0f} a second, "
    head += f"{document['failed']} failed, {document['left_in_the_middle']} left in the middle; "
    head += "MB of memory of their own (USS)"
    after = table(["MB, median", "second quarter", "last quarter", "most", "flat"], flat)
    return f"{head}\n\n{table(['seconds', 'requests', *roles], rows)}\n\n{after}\n\n{RULE}"


def panels(document: program.Document) -> list[Panel]:
    """Memory over time."""
    readings = document["readings"]
    series = {
        role: [(each["seconds"], each["uss_bytes"].get(role, 0) / 1e6) for each in readings]
        for role in readings[-1]["uss_bytes"]
    }
    return [Lines(title="memory (USS)", x_label="seconds", y_label="MB", series=series)]
