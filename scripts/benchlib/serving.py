"""The load test of generation and embedding endpoints, behind `scripts/bench_serving`.

The loads (so many clients, or so many requests per second) take turns: the first run of each, then the second of each,
so that a disturbance of the machine does not hit all the runs of one load.
"""

import argparse
from collections import Counter as Tally
from collections.abc import Sequence
from typing import Any

from benchlib import pool, program
from benchlib.bencher import Bencher, Load, RunSettings, allow_many_sockets
from benchlib.client import JsonClient
from benchlib.endpoints import Sample, Workload, find_model
from benchlib.options import parse
from benchlib.outcome import panels, render
from benchlib.pool import PoolSpec, Server
from benchlib.stats import medians


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 if every request succeeded, 1 if one failed, 2 if there is no server to speak to."""
    options = parse(arguments)

    def has_failed(document: program.Document) -> bool:
        return not options.allow_failures and any(level["failures"] for level in document["levels"])

    return program.run("bench_serving", options, _measure, render=render, panels=panels, has_failed=has_failed)


async def _measure(options: argparse.Namespace) -> program.Document:
    task = "embed" if options.endpoint == "embeddings" else "generate"

    def spec() -> PoolSpec:
        return PoolSpec.of(options, api_server_count=options.api_server_count, task=task)

    async with pool.server(options, spec) as server:
        return await bench(options, server)


async def bench(options: argparse.Namespace, server: Server) -> program.Document:
    """Run every load against it."""
    loads = (
        [Load(rate=rate) for rate in options.rate]
        if options.rate
        else [Load(concurrency=concurrency) for concurrency in options.concurrency]
    )
    allow_many_sockets()
    async with JsonClient(server.target) as http:
        workload = Workload(
            endpoint=options.endpoint,
            model=(options.url and options.model) or await find_model(http),
            output_tokens=options.output_tokens,
            is_stream=options.stream,
        )
        bencher = Bencher(RunSettings.of(options), server, workload=workload, http=http)
        await bencher.prepare()
        levels = [_Level(load) for load in loads]
        for repetition in range(options.repeat):
            for level in levels:
                title = f"{level.load.name}, run {repetition + 1}/{options.repeat}"
                level.add(*await bencher.run(level.load, title))
    return {"model": workload.model, "levels": [level.document() for level in levels]}


class _Level:
    """All repetitions of one load: each run, and all that failed in any of them."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self._runs: list[dict[str, Any]] = []
        self._failures: Tally[str] = Tally()
        self._details: dict[str, str] = {}

    def add(self, run: dict[str, Any], samples: list[Sample]) -> None:
        self._runs.append(run)
        for sample in samples:
            if sample.failure is not None:
                self._failures[sample.failure] += 1
                self._details.setdefault(sample.failure, sample.detail)

    def document(self) -> dict[str, Any]:
        runs = self._runs
        return {
            "load": self.load.name,
            "concurrency": self.load.concurrency,
            "rate": self.load.rate,
            "succeeded": sum(run["succeeded"] for run in runs),
            "failures": dict(self._failures),
            "failure_examples": self._details,
            "notes": list(dict.fromkeys(note for run in runs for note in run["notes"])),
            "median": medians([{key: value for key, value in run.items() if key != "failures"} for run in runs]),
            "runs": runs,
        }
