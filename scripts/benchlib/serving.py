"""The load test of generation and embedding endpoints, behind `scripts/bench_serving`.

For each load (so many clients, or so many requests per second) and each repetition: make prompts, warm up, run, and
compare the CPU clocks before and after. Only the run itself is timed; prompts are made and requests are encoded before.
"""

import argparse
import gc
import itertools
import random
import resource
import sys
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import uvloop

from benchlib import processes
from benchlib.client import JsonClient, Reply, Target
from benchlib.endpoints import Sample, Workload, find_counter, find_model
from benchlib.load import closed_loop, open_loop, poisson_schedule
from benchlib.options import parse
from benchlib.outcome import outcome, render
from benchlib.parsing import ReplyError
from benchlib.prompts import PromptMaker
from benchlib.report import Progress, provenance, write_json
from benchlib.stats import medians

_PROMPTS_FOR_A_DURATION = 1024
_BUSY_CLIENT_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Load:
    """How requests are offered: by so many clients that wait (closed loop), or at a rate (open loop)."""

    concurrency: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g} req/s"
        return "1 client" if self.concurrency == 1 else f"{self.concurrency} clients"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 if every request succeeded, 1 if one failed, 2 if there is no server to speak to."""
    options = parse(arguments)
    try:
        target = Target.parse(options.url, api_key=options.api_key)
        document = uvloop.run(bench(options, target))
    except (OSError, ValueError, ReplyError) as error:
        print(f"bench_serving: {options.url}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(render(document))
    if options.json is not None:
        write_json(options.json, document)
    has_failures = any(level["failures"] for level in document["levels"])
    return 1 if has_failures and not options.allow_failures else 0


async def bench(options: argparse.Namespace, target: Target) -> dict[str, Any]:
    """Run every load; the whole outcome as the document that `--json` writes."""
    loads = (
        [Load(rate=rate) for rate in options.rate]
        if options.rate
        else [Load(concurrency=concurrency) for concurrency in options.concurrency]
    )
    _allow_many_sockets()
    async with JsonClient(target) as http:
        workload = Workload(
            endpoint=options.endpoint,
            model=options.model or await find_model(http),
            output_tokens=options.output_tokens,
            is_stream=options.stream,
        )
        bencher = Bench(options, target, workload=workload, http=http)
        await bencher.prepare()
        levels = [await bencher.run_level(load) for load in loads]
    # Results are shared: neither the key nor a path of this machine belongs in them.
    settings = {key: value for key, value in vars(options).items() if key not in ("api_key", "json")}
    settings["model"] = workload.model
    return {"bench": "bench_serving", "label": options.label, **provenance(), "settings": settings, "levels": levels}


def _allow_many_sockets() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Bench:
    """One server under test, one kind of request, one source of chance."""

    def __init__(self, options: argparse.Namespace, target: Target, *, workload: Workload, http: JsonClient) -> None:
        self._options = options
        self._target = target
        self._workload = workload
        self._http = http
        self._rng = random.Random(options.seed)
        self._prompts = PromptMaker(self._rng, options.input_tokens, count=None)
        self._is_exact = options.prompt_ids

    async def prepare(self) -> None:
        """See whether the server counts tokens for us."""
        options = self._options
        if options.prompt_ids:
            return
        count = await find_counter(self._http, options.endpoint, self._workload.model)
        self._is_exact = count is not None
        self._prompts = PromptMaker(self._rng, options.input_tokens, count=count)

    async def run_level(self, load: Load) -> dict[str, Any]:
        """All repetitions of one load: each run, their medians, and all that failed in any of them."""
        runs: list[dict[str, Any]] = []
        failures: Tally[str] = Tally()
        details: dict[str, str] = {}
        notes: list[str] = []
        for repetition in range(self._options.repeat):
            run, samples = await self._run(load, f"{load.name}, run {repetition + 1}/{self._options.repeat}")
            runs.append(run)
            for sample in samples:
                if sample.failure is not None:
                    failures[sample.failure] += 1
                    details.setdefault(sample.failure, sample.detail)
            notes += [note for note in run["notes"] if note not in notes]
        return {
            "load": load.name,
            "concurrency": load.concurrency,
            "rate": load.rate,
            "succeeded": sum(run["succeeded"] for run in runs),
            "failures": dict(failures),
            "failure_examples": details,
            "notes": notes,
            "median": medians([{key: value for key, value in run.items() if key != "failures"} for run in runs]),
            "runs": runs,
        }

    async def _run(self, load: Load, title: str) -> tuple[dict[str, Any], list[Sample]]:
        options = self._options
        schedule = self._schedule(load)
        total = options.requests if schedule is None else len(schedule)
        amount = options.prompts or (_PROMPTS_FOR_A_DURATION if total is None else total)
        warm_samples = await self._warm_up(load, title)
        requests = await self._encode(amount if total is None else min(amount, total), f"{title}, prompts")
        # Our own collector's pauses would be somebody's latency; a run makes no cycles worth collecting.
        gc.collect()
        gc.disable()
        try:
            roles = await self._find_roles()
            before = processes.read(roles)
            samples = await self._offer(
                itertools.islice(itertools.cycle(requests), total),
                title,
                total=total,
                clients=load.concurrency or 0,
                schedule=schedule,
                duration=options.duration,
            )
            after = processes.read(roles)
            # A worker that was replaced meanwhile is known only now.
            now = await self._find_roles()
            born = processes.read({pid: role for pid, role in now.items() if pid not in roles})
            spent = processes.spent(before, after.joined(born), {**now, **roles})
        finally:
            gc.enable()
        run = outcome(samples, spent)
        run["notes"] = self._notes(samples, spent, is_reused=len(samples) > len(requests))
        if failed := sum(sample.failure is not None for sample in warm_samples):
            run["notes"].append(f"{failed} requests failed in the warm-up (counted as failures)")
        return run, warm_samples + samples

    async def _warm_up(self, load: Load, title: str) -> list[Sample]:
        amount = self._options.warmup
        if amount == 0:
            return []
        requests = await self._encode(amount, f"{title}, prompts for the warm-up")
        clients = min(load.concurrency or amount, amount)
        return await self._offer(iter(requests), f"{title}, warm-up", clients=clients, total=amount)

    def _schedule(self, load: Load) -> list[float] | None:
        if load.rate is None:
            return None
        options = self._options
        return poisson_schedule(self._rng, load.rate, requests=options.requests, duration_seconds=options.duration)

    async def _encode(self, amount: int, title: str) -> list[bytes]:
        """That many requests with prompts that were not sent before."""
        requests: list[bytes] = []
        low, high = self._options.prompt_id_range
        with Progress(title, total=amount, is_passing=True) as progress:
            for _ in range(amount):
                prompt = (
                    [self._rng.randrange(low, high) for _ in range(self._options.input_tokens)]
                    if self._options.prompt_ids
                    else await self._prompts.make()
                )
                requests.append(self._target.request("POST", self._workload.path, body=self._workload.body(prompt)))
                progress.advance()
        return requests

    async def _offer(
        self,
        requests: Iterator[bytes],
        title: str,
        *,
        total: int | None,
        clients: int = 0,
        schedule: list[float] | None = None,
        duration: float | None = None,
    ) -> list[Sample]:
        samples: list[Sample] = []
        with Progress(title, total=total, duration_seconds=duration) as progress:

            def on_reply(due: float, reply: Reply) -> None:
                sample = self._workload.judge(due, reply)
                samples.append(sample)
                progress.advance(is_failed=sample.failure is not None)

            began = perf_counter()
            timeout = self._options.timeout
            if schedule is None:
                until = None if duration is None else began + duration
                await closed_loop(
                    self._target,
                    requests,
                    concurrency=clients,
                    until=until,
                    timeout_seconds=timeout,
                    on_reply=on_reply,
                )
            else:
                await open_loop(
                    self._target,
                    requests,
                    schedule=[began + at for at in schedule],
                    timeout_seconds=timeout,
                    on_reply=on_reply,
                )
        return samples

    async def _find_roles(self) -> processes.Roles:
        """The server's processes, as far as they are on this machine and somebody names them."""
        known: dict[int, str] = {}
        if self._target.is_local:
            try:
                _, document = await self._http.get("/pool")
            except (OSError, ReplyError):
                document = None  # a server that dies under load is shown by its failures
            known = processes.roles_from_pool(document)
        return processes.roles_of_tree(known, root=self._options.server_pid)

    def _notes(self, samples: list[Sample], spent: processes.Spent, *, is_reused: bool) -> list[str]:
        """What a reader must know to believe the numbers."""
        notes: list[str] = []
        share = spent.client_seconds / spent.wall_seconds
        if share > _BUSY_CLIENT_SHARE:
            notes.append(f"the client used {share:.0%} of a core: it may be the bottleneck, latencies are too long")
        wanted = self._options.input_tokens
        counts = [sample.prompt_tokens for sample in samples if sample.failure is None]
        off = sum(count != wanted for count in counts)
        if off:
            why = "" if self._is_exact else " (the server has no /tokenize to make exact ones with)"
            span = f"{min(counts)} to {max(counts)}"
            notes.append(f"{off} of {len(counts)} prompts had not {wanted} tokens but {span}{why}")
        if is_reused:
            notes.append("prompts were sent more than once: a cache may have known them")
        if spent.gone:
            notes.append(f"server processes ended during the run, some CPU is missing: {', '.join(spent.gone)}")
        return notes
