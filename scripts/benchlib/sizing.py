"""What an API server more costs and gives: start-up, memory, CPU and the balance of connections, by their number.

Each repetition starts a fresh pool for every number, and asks it everything: how long it took, what it weighs fresh and
after its requests, what it does when idle, what a request costs it, and where new connections go.
"""

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

from benchlib import footprint, pool, program, startup
from benchlib.arguments import add_outcome, add_server, list_of, not_negative, positive, positive_float
from benchlib.balance import Balance
from benchlib.bencher import Bencher, Load, RunSettings, allow_many_sockets
from benchlib.client import JsonClient, Target
from benchlib.endpoints import Workload, find_model
from benchlib.meter import Meter
from benchlib.pool import PoolSpec, Server
from benchlib.sizing_report import panels, render
from benchlib.stats import medians

_PROMPTS = 1024
_CLIENTS_PER_SERVER, _MOST_CLIENTS = 4, 128


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="bench_pool", description="Pools by their number of API servers.")
    add_server(parser, model="sim", counts=[1, 2, 4, 8, 16, 32])
    group = parser.add_argument_group("measurement")
    group.add_argument("--endpoint", choices=("embeddings", "chat"), default="embeddings")
    group.add_argument("--tokens", type=positive, default=16, metavar="N", help="of each prompt (default 16)")
    group.add_argument("--output-tokens", type=positive, default=16, metavar="N", help="of a chat (default 16)")
    group.add_argument("--requests", type=positive, default=10_000, metavar="N", help="per API server (default 10000)")
    group.add_argument("--idle", type=positive_float, default=3.0, metavar="SECONDS", help="default 3")
    group.add_argument(
        "--connections", type=list_of(positive), default=[8, 64, 256], metavar="N,…", help="default 8,64,256"
    )
    group.add_argument("--busy", type=positive, default=32, metavar="N", help="clients that run meanwhile (default 32)")
    group.add_argument("--trials", type=not_negative, default=10, metavar="N", help="of each balance (default 10)")
    add_outcome(parser)
    options = parser.parse_args(arguments)
    if options.url is not None:
        options.api_server_count = []
    elif options.tokenizer is None and (options.model or "sim") == "sim":
        options.tokenizer = "minilm"
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""

    def has_failed(document: program.Document) -> bool:
        return any(level["median"].get("failed") for level in document["levels"])

    return program.run("bench_pool", parse(arguments), bench, render=render, panels=panels, has_failed=has_failed)


async def bench(options: argparse.Namespace) -> program.Document:
    """All numbers of API servers (None: what runs at the URL), all repetitions."""
    allow_many_sockets()
    counts: list[int | None] = [*options.api_server_count] or [None]
    runs: dict[int | None, list[dict[str, Any]]] = {count: [] for count in counts}
    for repetition in range(options.repeat):
        for count in counts:
            title = f"{count or 'the'} API servers, repetition {repetition + 1}/{options.repeat}"
            runs[count].append(await _measure(options, count, title))
    levels = [{"api_server_count": count, "median": medians(of), "runs": of} for count, of in runs.items()]
    return {"levels": levels}


async def _measure(options: argparse.Namespace, count: int | None, title: str) -> dict[str, Any]:
    if options.url is not None:
        target = Target.parse(options.url, api_key=options.api_key)
        return await _Measurement(options, Server(target, options.server_pid), title=title).run()
    task = "embed" if options.endpoint == "embeddings" else "generate"
    spec = PoolSpec.of(options, api_server_count=count, task=task)
    async with pool.started(spec, is_ready=False) as own:
        target = Target.parse(own.url, api_key=options.api_key)
        times = await startup.measure(own, target, api_server_count=count)
        run = await _Measurement(options, Server(target, own.pid, own), title=title).run()
    return {"seconds": times, **run}


class _Measurement:
    """Everything that can be asked of one running server."""

    def __init__(self, options: argparse.Namespace, server: Server, *, title: str) -> None:
        self._options = options
        self._server = server
        self._title = title

    async def run(self) -> dict[str, Any]:
        """The numbers of one repetition."""
        async with JsonClient(self._server.target) as http:
            meter = Meter(self._server, http)
            roles = await meter.roles()
            fresh = footprint.memory(roles)
            idle = await footprint.idle_shares(roles, self._options.idle)
            servers = sum(role.startswith("api-") for role in roles.values())
            load, request = await self._load(http, max(1, servers))
            after = footprint.memory(await meter.roles())
        return {
            "api_servers": servers,
            "idle_share": _means(idle),
            "memory_fresh": _memory(fresh),
            "memory_after": _memory(after),
            **load,
            "balance": await self._balance(request, servers),
        }

    async def _load(self, http: JsonClient, servers: int) -> tuple[dict[str, Any], bytes]:
        """So many requests for each API server; and one of them, for whoever needs one."""
        options = self._options
        workload = Workload(
            endpoint=options.endpoint,
            model=(options.url and options.model) or await find_model(http),
            output_tokens=options.output_tokens,
            is_stream=options.endpoint == "chat",
        )
        requests = options.requests * servers
        settings = RunSettings(
            endpoint=options.endpoint, input_tokens=options.tokens, requests=requests, prompts=_PROMPTS
        )
        bencher = Bencher(settings, self._server, workload=workload, http=http)
        await bencher.prepare()
        clients = min(_MOST_CLIENTS, _CLIENTS_PER_SERVER * servers)
        run, samples = await bencher.run(Load(concurrency=clients), self._title)
        costs = {role: used["cpu_seconds_per_request"] for role, used in run["server"].items()}
        request = self._server.target.request("POST", workload.path, body=workload.body("the quick brown fox"))
        numbers = {
            "requests": len(samples),
            "failed": run["failed"],
            "requests_per_second": run["requests_per_second"],
            "cpu_seconds_per_request": {
                "API servers": costs.get("api (all)") or costs.get("api-0"),
                "engine": costs.get("engine"),
                "all": costs.get("server (all)"),
            },
        }
        return numbers, request

    async def _balance(self, request: bytes, servers: int) -> dict[str, Any]:
        """Nothing to be found with one API server, or where nobody counts connections."""
        options = self._options
        if servers < 2 or options.trials == 0:
            return {}
        balance = Balance(self._server.target)
        found: dict[str, Any] = {}
        for amount in options.connections:
            title = f"{self._title}, {amount} connections"
            found[f"{amount}"] = {
                "at_once": await balance.measure(amount, trials=options.trials, title=title),
                "beside": await balance.measure_beside(
                    amount, busy=options.busy, request=request, trials=options.trials, title=f"{title} more"
                ),
            }
        return found


def _means(shares: dict[str, float]) -> dict[str, float]:
    return {part: statistics.fmean(values) for part, values in footprint.by_part(shares).items()}


def _memory(memory: footprint.Memory) -> dict[str, dict[str, float]]:
    """Of each part the mean, and of the API servers the largest too."""
    return {
        part: {
            "pss": statistics.fmean(value["pss"] for value in values),
            "uss": statistics.fmean(value["uss"] for value in values),
            "uss_max": max(value["uss"] for value in values),
        }
        for part, values in footprint.by_part(memory).items()
    }
