"""Does one long prompt delay everybody else? Short chats with and without long ones, over configurations of our pool.

Each repetition goes through all configurations; each gets a fresh pool and is measured without the long chats and then
with them. So the two are neighbours in time, and the configurations take turns.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from benchlib import pool, program
from benchlib.arguments import add_outcome, add_server, list_of, one_of, positive, positive_float
from benchlib.bencher import allow_many_sockets
from benchlib.client import JsonClient
from benchlib.endpoints import find_model
from benchlib.meter import Meter
from benchlib.mixed_configs import MODES, Config, expand
from benchlib.mixed_load import MixedLoad, MixedSettings
from benchlib.mixed_report import panels, render
from benchlib.pool import PoolSpec, serve_flags
from benchlib.stats import medians

_SIM_STEP = ("--step-ms", "5")  # 32 tokens take 160 ms, as they do on a GPU with a model of 8 billion
_WARM_UP_SECONDS = 1.0
WITHOUT, WITH = "without", "with"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="bench_mixed", description="Short chats beside long ones.")
    add_server(parser, model="sim", counts=[1], tokenizer="qwen3")
    group = parser.add_argument_group("configurations of our pool")
    group.add_argument(
        "--backends",
        type=list_of(one_of("auto", "fastokens", "hf")),
        default=["fastokens", "hf"],
        metavar="NAME,…",
        help="--tokenizer-backend; default fastokens,hf",
    )
    group.add_argument(
        "--modes",
        type=list_of(one_of(*MODES)),
        default=[*MODES],
        metavar="NAME,…",
        help="--preprocess-order arrival or ready, or inline for --preprocess-inline; default all three",
    )
    group = parser.add_argument_group("load")
    group.add_argument("--short-clients", type=positive, default=8, metavar="N", help="default 8")
    group.add_argument("--short-tokens", type=positive, default=256, metavar="N", help="default 256")
    group.add_argument("--long-clients", type=positive, default=4, metavar="N", help="default 4")
    group.add_argument("--long-tokens", type=positive, default=36_000, metavar="N", help="default 36000")
    group.add_argument("--output-tokens", type=positive, default=32, metavar="N", help="of both (default 32)")
    group.add_argument("--poll-ms", type=positive_float, default=10.0, metavar="MS", help="of /v1/models (default 10)")
    group.add_argument("--duration", type=positive_float, default=10.0, metavar="SECONDS", help="per run (default 10)")
    group.add_argument("--seed", type=int, default=0, help="of the prompts")
    add_outcome(parser)
    options = parser.parse_args(arguments)
    if options.url is None and (options.model or "sim") == "sim" and not options.engine_args:
        options.engine_args = _SIM_STEP
    if options.url is not None:
        options.api_server_count = []
    elif options.model not in (None, "sim") and options.tokenizer == "qwen3":
        options.tokenizer = None  # a real model has its own
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""

    def has_failed(document: program.Document) -> bool:
        return any(level["failures"] for level in document["levels"])

    return program.run("bench_mixed", parse(arguments), bench, render=render, panels=panels, has_failed=has_failed)


async def bench(options: argparse.Namespace) -> program.Document:
    """All configurations, all repetitions, without and with the long chats."""
    allow_many_sockets()
    if options.url is not None:
        configs, notes = [Config(None)], list[str]()
    else:
        configs, notes = expand(options.api_server_count, options.backends, options.modes, serve_flags())
    runs: dict[tuple[Config, str], list[dict[str, Any]]] = {}
    model = ""
    for repetition in range(options.repeat):
        for config in configs:
            title = f"{config.name}, repetition {repetition + 1}/{options.repeat}"
            model, pair = await _measure(options, config, title, seed=options.seed + repetition)
            for name, run in pair.items():
                runs.setdefault((config, name), []).append(run)
    levels = [_level(config, name, of) for (config, name), of in runs.items()]
    return {"model": model, "notes": notes, "levels": levels}


def _level(config: Config, name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    failures: dict[str, int] = {}
    for run in runs:
        for kind, count in run["failures"].items():
            failures[kind] = failures.get(kind, 0) + count
    return {
        "config": config.name,
        "flags": list(config.flags()),
        "api_server_count": config.api_server_count,
        "long": name,
        "failures": failures,
        "median": medians([{key: value for key, value in run.items() if key != "failures"} for run in runs]),
        "runs": runs,
    }


async def _measure(
    options: argparse.Namespace, config: Config, title: str, *, seed: int
) -> tuple[str, dict[str, dict[str, Any]]]:
    """The model's name; and the two runs on one server."""
    settings = MixedSettings(
        short_clients=options.short_clients,
        short_tokens=options.short_tokens,
        long_clients=options.long_clients,
        long_tokens=options.long_tokens,
        output_tokens=options.output_tokens,
        poll_seconds=options.poll_ms / 1000,
    )

    def spec() -> PoolSpec:
        return PoolSpec.of(
            options, api_server_count=config.api_server_count, task="generate", more_flags=config.flags()
        )

    pair: dict[str, dict[str, Any]] = {}
    async with pool.server(options, spec) as server, JsonClient(server.target) as http:
        model = (options.url and options.model) or await find_model(http)
        load = MixedLoad(settings, server, model=model, http=http, seed=seed)
        await load.prepare(with_long=True)
        meter = Meter(server, http)
        await load.run(f"{title}, warm-up", with_long=True, duration=min(_WARM_UP_SECONDS, options.duration))
        for name in (WITHOUT, WITH):
            work = load.run(f"{title}, {name} long", with_long=name == WITH, duration=options.duration)
            run, spent = await meter.measure(work)
            run["core_share"] = {role: used / spent.wall_seconds for role, used in spent.server_seconds.items()}
            run["core_share"]["client"] = spent.client_seconds / spent.wall_seconds
            pair[name] = run
    return model, pair
