"""What the pool adds to a request: the same engine in this process and behind the pool, one request at a time.

The two take turns, with the same prompts. The difference of the means is what HTTP, JSON, the wire, two processes more
and our client cost. Where the server says in `Server-Timing` how long its stages took, they are told beside it; what
they leave of the online time is the way there and back: client, sockets, HTTP parsing.
"""

import argparse
import itertools
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from time import perf_counter
from typing import Any

from benchlib import offline, pool, program, server_timing
from benchlib.arguments import add_outcome, add_server, list_of, positive, positive_float
from benchlib.bencher import allow_many_sockets
from benchlib.client import JsonClient, Reply
from benchlib.endpoints import EndpointName, Sample, Workload, find_counter, find_model
from benchlib.load import closed_loop
from benchlib.meter import Meter
from benchlib.offline import OfflineEngine
from benchlib.overhead_report import panels, render
from benchlib.pool import PoolSpec, Server
from benchlib.prompts import Counter, PromptMaker
from benchlib.report import Progress
from benchlib.stats import medians, summarize

_PROMPTS = 256
_WARM_UP_SECONDS = 0.3
_TIMEOUT_SECONDS = 120.0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="bench_overhead", description="One request at a time, offline and online.")
    add_server(parser, model="sim", tokenizer=None)
    what = parser.add_argument_group("requests")
    what.add_argument(
        "--endpoint",
        choices=("embeddings", "completions"),
        help="default: embeddings (completions for smollm2)",
    )
    what.add_argument("--tokens", type=list_of(positive), default=[16, 256], metavar="N,…", help="default 16,256")
    what.add_argument("--output-tokens", type=positive, default=16, metavar="N", help="of a completion (default 16)")
    what.add_argument("--duration", type=positive_float, default=3.0, metavar="SECONDS", help="per run (default 3)")
    what.add_argument("--seed", type=int, default=0, help="of the prompts")
    what.add_argument("--offline", metavar="MODEL", help="with --url: measure this model of ours beside it")
    add_outcome(parser)
    options = parser.parse_args(arguments)
    if options.offline is not None and options.url is None:
        parser.error("--offline is for --url; a pool of ours is compared with its own engine")
    if options.endpoint is None:
        options.endpoint = "completions" if options.model == "smollm2" else "embeddings"
    if options.tokenizer is None and options.url is None and (options.model or "sim") == "sim":
        options.tokenizer = "minilm"  # a real one, and at hand; a token a byte would be too easy
    options.api_server_count = options.api_server_count or 1
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""

    def has_failed(document: program.Document) -> bool:
        return any(level["failed"] for level in document["levels"])

    return program.run("bench_overhead", parse(arguments), bench, render=render, panels=panels, has_failed=has_failed)


async def bench(options: argparse.Namespace) -> program.Document:
    """Both sides, all sizes, all repetitions."""
    allow_many_sockets()
    task = "embed" if options.endpoint == "embeddings" else "generate"

    def spec() -> PoolSpec:
        return PoolSpec.of(options, api_server_count=options.api_server_count, task=task)

    async with AsyncExitStack() as stack:
        engine = await _offline_engine(stack, options, spec)
        server = await stack.enter_async_context(pool.server(options, spec))
        http = await stack.enter_async_context(JsonClient(server.target))
        model = (options.url and options.model) or await find_model(http)
        comparison = _Comparison(options, server, engine=engine, http=http, model=model)
        levels = await comparison.run()
    return {"model": model, "levels": levels, "encoder": None if engine is None else engine.encoder_name}


async def _offline_engine(
    stack: AsyncExitStack, options: argparse.Namespace, spec: Callable[[], PoolSpec]
) -> OfflineEngine | None:
    if options.url is None:
        return await stack.enter_async_context(offline.running(spec()))
    if options.offline is None:
        return None
    return await stack.enter_async_context(offline.running(PoolSpec(model=options.offline)))


class _Comparison:
    """One engine here, the same behind a server."""

    def __init__(
        self,
        options: argparse.Namespace,
        server: Server,
        *,
        engine: OfflineEngine | None,
        http: JsonClient,
        model: str,
    ) -> None:
        self._options = options
        self._server = server
        self._engine = engine
        self._http = http
        self._meter = Meter(server, http)
        self._rng = random.Random(options.seed)
        endpoint: EndpointName = options.endpoint
        self._workload = Workload(endpoint=endpoint, model=model, output_tokens=options.output_tokens, is_stream=False)

    async def run(self) -> list[dict[str, Any]]:
        """A level a size; in each, the medians over the repetitions, and every run."""
        options = self._options
        count = await self._counter()
        makers = {tokens: PromptMaker(self._rng, tokens, count=count) for tokens in options.tokens}
        runs: dict[int, list[dict[str, Any]]] = {tokens: [] for tokens in options.tokens}
        for tokens, maker in makers.items():
            await self._pair(
                [await maker.make()], f"{tokens} tokens, warm-up", duration=min(_WARM_UP_SECONDS, options.duration)
            )
        for repetition in range(options.repeat):
            for tokens, maker in makers.items():
                title = f"{tokens} tokens, run {repetition + 1}/{options.repeat}"
                prompts = await _make(maker, f"{title}, prompts")
                runs[tokens].append(await self._pair(prompts, title, duration=options.duration))
        return [
            {"tokens": tokens, "failed": sum(run["failed"] for run in of), "median": medians(of), "runs": of}
            for tokens, of in runs.items()
        ]

    async def _counter(self) -> Counter | None:
        engine = self._engine
        if engine is None:
            return await find_counter(self._http, self._options.endpoint, self._workload.model)

        async def count(text: str) -> int:
            return engine.count(text)

        return count

    async def _pair(self, prompts: list[str], title: str, *, duration: float) -> dict[str, Any]:
        run: dict[str, Any] = {}
        if self._engine is not None:
            run["offline_seconds"] = summarize(await self._offline(self._engine, prompts, title, duration=duration))
        run |= await self._online(prompts, title, duration=duration)
        if self._engine is not None:
            run["added_seconds"] = {
                key: run["online_seconds"][key] - run["offline_seconds"][key]
                for key in ("mean", "p50")
                if key in run["online_seconds"]
            }
        return run

    async def _offline(self, engine: OfflineEngine, prompts: list[str], title: str, *, duration: float) -> list[float]:
        seconds: list[float] = []

        async def work() -> None:
            with Progress(f"{title}, offline", total=None, duration_seconds=duration) as progress:
                until = perf_counter() + duration
                for prompt in itertools.cycle(prompts):
                    began = perf_counter()
                    if began >= until:
                        return
                    await engine.one(prompt, output_tokens=self._options.output_tokens)
                    seconds.append(perf_counter() - began)
                    progress.advance()

        await self._meter.measure(work())
        return seconds

    async def _online(self, prompts: list[str], title: str, *, duration: float) -> dict[str, Any]:
        target, workload = self._server.target, self._workload
        requests = [target.request("POST", workload.path, body=workload.body(prompt)) for prompt in prompts]
        samples: list[Sample] = []
        heads: list[bytes] = []

        async def work() -> None:
            with Progress(f"{title}, online", total=None, duration_seconds=duration) as progress:

                def on_reply(due: float, reply: Reply) -> None:
                    samples.append(workload.judge(due, reply))
                    heads.append(reply.head)
                    progress.advance(is_failed=samples[-1].failure is not None)

                await closed_loop(
                    target,
                    itertools.cycle(requests),
                    concurrency=1,
                    until=perf_counter() + duration,
                    timeout_seconds=_TIMEOUT_SECONDS,
                    on_reply=on_reply,
                )

        _, spent = await self._meter.measure(work())
        good = [sample for sample in samples if sample.failure is None]
        failed = [sample for sample in samples if sample.failure is not None]
        requests_done = max(1, len(samples))
        return {
            "online_seconds": summarize([sample.e2e for sample in good]),
            "prompt_tokens": summarize([float(sample.prompt_tokens) for sample in good]),
            "failed": len(failed),
            "failure_example": f"{failed[0].failure}: {failed[0].detail}" if failed else "",
            "stages_seconds": server_timing.summaries(heads),
            "cpu_seconds_per_request": {
                **{role: used / requests_done for role, used in spent.server_seconds.items()},
                "client": spent.client_seconds / requests_done,
            },
        }


async def _make(maker: PromptMaker, title: str) -> list[str]:
    with Progress(title, total=_PROMPTS, is_passing=True) as progress:
        prompts: list[str] = []
        for _ in range(_PROMPTS):
            prompts.append(await maker.make())
            progress.advance()
    return prompts
