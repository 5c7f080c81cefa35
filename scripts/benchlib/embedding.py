"""Embeddings under load: so many clients against so many API servers, with the same engine offline beside it.

Each repetition measures offline first, then starts a fresh pool for each number of API servers and runs every number
of clients on it. Offline, as many texts as take about a run's time are handed to the engine at once: its best case.
"""

import argparse
import random
from collections import Counter as Tally
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from benchlib import offline, pool, program
from benchlib.arguments import add_outcome, add_server, list_of, positive, positive_float
from benchlib.bencher import Bencher, Load, RunSettings, allow_many_sockets
from benchlib.client import JsonClient
from benchlib.embedding_report import panels, render
from benchlib.endpoints import Workload, find_model
from benchlib.offline import OfflineEngine
from benchlib.pool import PoolSpec
from benchlib.prompts import PromptMaker
from benchlib.report import Progress
from benchlib.stats import medians

_PROMPTS = 256
_PROBE_TEXTS, _MOST_TEXTS = 64, 8000  # an engine's queue may end at 8192
_ENOUGH = 0.7  # of a run's time: a batch that was to last it may well be a little quicker
_DOUBLINGS_TO_128 = [1, 2, 4, 8, 16, 32, 64, 128]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="bench_embed", description="Embeddings by clients and API servers.")
    add_server(parser, model="sim", counts=[1, 2, 4])
    what = parser.add_argument_group("load")
    what.add_argument("--tokens", type=positive, default=16, metavar="N", help="of each text (default 16)")
    what.add_argument(
        "--clients",
        type=list_of(positive),
        default=_DOUBLINGS_TO_128,
        metavar="N,…",
        help="default 1,2,4, … 128",
    )
    what.add_argument("--duration", type=positive_float, default=3.0, metavar="SECONDS", help="per run (default 3)")
    what.add_argument("--encoding-format", choices=("float", "base64"), default="float", help="of the vectors")
    what.add_argument("--seed", type=int, default=0, help="of the texts")
    what.add_argument("--offline", metavar="MODEL", help="with --url: measure this model of ours beside it")
    add_outcome(parser)
    options = parser.parse_args(arguments)
    if options.offline is not None and options.url is None:
        parser.error("--offline is for --url; a pool of ours is compared with its own engine")
    if options.url is not None:
        options.api_server_count = []  # whatever runs there
    elif options.tokenizer is None and (options.model or "sim") == "sim":
        options.tokenizer = "minilm"  # a real one, and at hand; a token a byte would be too easy
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""

    def has_failed(document: program.Document) -> bool:
        return any(level["failures"] for level in document["levels"])

    return program.run("bench_embed", parse(arguments), bench, render=render, panels=panels, has_failed=has_failed)


async def bench(options: argparse.Namespace) -> program.Document:
    """All repetitions of all numbers of API servers (None: the one server at the URL), and offline."""
    allow_many_sockets()
    counts: list[int | None] = [*options.api_server_count] or [None]
    runs: dict[tuple[int | None, int], list[dict[str, Any]]] = {}
    offline_runs: list[dict[str, float]] = []
    model = ""
    for repetition in range(options.repeat):
        title = f"repetition {repetition + 1}/{options.repeat}"
        offline_spec = _offline_spec(options)
        if offline_spec is not None:
            offline_runs.append(await _offline(options, offline_spec, f"{title}, offline", seed=repetition))
        for count in counts:
            served = title if count is None else f"{title}, {count} API servers"
            model, by_clients = await _online(options, count, served, seed=repetition)
            for clients, run in by_clients.items():
                runs.setdefault((count, clients), []).append(run)
    return {
        "model": model,
        "offline": {"median": medians(offline_runs), "runs": offline_runs} if offline_runs else None,
        "levels": [_level(count, clients, of) for (count, clients), of in runs.items()],
    }


def _level(count: int | None, clients: int, runs: list[dict[str, Any]]) -> dict[str, Any]:
    failures: Tally[str] = Tally()
    for run in runs:
        failures.update(run["failures"])
    return {
        "api_server_count": count,
        "clients": clients,
        "failures": dict(failures),
        "notes": list(dict.fromkeys(note for run in runs for note in run["notes"])),
        "median": medians([{key: value for key, value in run.items() if key != "failures"} for run in runs]),
        "runs": runs,
    }


def _offline_spec(options: argparse.Namespace) -> PoolSpec | None:
    if options.url is None:
        return PoolSpec.of(options, api_server_count=None, task="embed")
    return None if options.offline is None else PoolSpec(model=options.offline)


async def _offline(options: argparse.Namespace, spec: PoolSpec, title: str, *, seed: int) -> dict[str, float]:
    """Texts and tokens per second of the engine alone."""
    async with offline.running(spec) as engine:

        async def count(text: str) -> int:
            return engine.count(text)

        maker = PromptMaker(random.Random(seed), options.tokens, count=count)
        texts = [await maker.make() for _ in range(_PROMPTS)]
        await _seconds_for(engine, texts[:_PROBE_TEXTS])  # warm
        probe = await _seconds_for(engine, texts[:_PROBE_TEXTS])
        amount = max(_PROBE_TEXTS, min(_MOST_TEXTS, int(_PROBE_TEXTS * options.duration / probe)))
        batch = [texts[at % _PROMPTS] for at in range(amount)]
        seconds, done = 0.0, 0
        with Progress(title, total=None, duration_seconds=options.duration) as progress:
            while seconds < options.duration * _ENOUGH:
                seconds += await _seconds_for(engine, batch)
                done += amount
                progress.done = done
    return {
        "texts_at_once": amount,
        "seconds": seconds,
        "requests_per_second": done / seconds,
        "tokens_per_second": done / seconds * options.tokens,
    }


async def _seconds_for(engine: OfflineEngine, texts: Sequence[str]) -> float:
    began = perf_counter()
    await engine.all(texts, output_tokens=1)
    return perf_counter() - began


async def _online(
    options: argparse.Namespace, count: int | None, title: str, *, seed: int
) -> tuple[str, dict[int, dict[str, Any]]]:
    """The model's name, and a run for each number of clients, on one server."""
    settings = RunSettings(
        endpoint="embeddings",
        input_tokens=options.tokens,
        duration=options.duration,
        prompts=_PROMPTS,
        seed=seed,
    )
    runs: dict[int, dict[str, Any]] = {}
    async with (
        pool.server(options, lambda: PoolSpec.of(options, api_server_count=count, task="embed")) as server,
        JsonClient(server.target) as http,
    ):
        model = (options.url and options.model) or await find_model(http)
        workload = Workload(
            endpoint="embeddings",
            model=model,
            output_tokens=0,
            is_stream=False,
            encoding_format=options.encoding_format,
        )
        bencher = Bencher(settings, server, workload=workload, http=http)
        await bencher.prepare()
        for clients in options.clients:
            load = Load(concurrency=clients)
            run, samples = await bencher.run(load, f"{title}, {load.name}")
            run["failures"] = dict(Tally(sample.failure for sample in samples if sample.failure is not None))
            # As many texts as a run sends would not be distinct in memory; what a cache may know is the same for all.
            run["notes"] = [note for note in run["notes"] if not note.startswith("prompts were sent more than once")]
            runs[clients] = run
    return model, runs
