"""One server under one kind of load, again and again: make prompts, warm up, run, read the CPU clocks.

Only the run itself is timed; prompts are made and requests are encoded before.
"""

import argparse
import itertools
import random
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from benchlib import processes
from benchlib.client import JsonClient, Reply
from benchlib.endpoints import EndpointName, Sample, Workload, find_counter
from benchlib.load import closed_loop, open_loop, poisson_schedule
from benchlib.meter import Meter
from benchlib.outcome import outcome
from benchlib.pool import Server
from benchlib.prompts import PromptMaker
from benchlib.report import Progress

_PROMPTS_FOR_A_DURATION = 1024
_REQUESTS_PER_CLIENT, _FEWEST_REQUESTS = 4, 128
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How one run goes, whatever the load. With neither `requests` nor `duration`, the load says how many."""

    endpoint: EndpointName
    input_tokens: int
    prompt_ids: bool = False
    prompt_id_range: tuple[int, int] = (1000, 8000)
    requests: int | None = None
    duration: float | None = None
    prompts: int | None = None
    warmup: int = 8
    timeout: float = 300.0
    seed: int = 0

    @classmethod
    def of(cls, options: argparse.Namespace) -> "RunSettings":
        """From the options of `scripts/bench_serving`."""
        return cls(**{name: getattr(options, name) for name in cls.__dataclass_fields__})

    def total(self, load: Load) -> int | None:
        """How many requests a closed loop sends; None if time alone ends it."""
        if self.requests is not None or self.duration is not None:
            return self.requests
        return max(_FEWEST_REQUESTS, _REQUESTS_PER_CLIENT * (load.concurrency or 0))


def allow_many_sockets() -> None:
    """Raise the limit of open files as far as we may: every client is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Bencher:
    """One server under test, one kind of request, one source of chance."""

    def __init__(self, settings: RunSettings, server: Server, *, workload: Workload, http: JsonClient) -> None:
        self._settings = settings
        self._server = server
        self._workload = workload
        self._http = http
        self._meter = Meter(server, http)
        self._rng = random.Random(settings.seed)
        self._prompts = PromptMaker(self._rng, settings.input_tokens, count=None)
        self._is_exact = settings.prompt_ids

    async def prepare(self) -> None:
        """See whether the server counts tokens for us."""
        settings = self._settings
        if settings.prompt_ids:
            return
        count = await find_counter(self._http, settings.endpoint, self._workload.model)
        self._is_exact = count is not None
        self._prompts = PromptMaker(self._rng, settings.input_tokens, count=count)

    async def run(self, load: Load, title: str) -> tuple[dict[str, Any], list[Sample]]:
        """One run's numbers (as `outcome` has them, with notes), and all samples, the warm-up's too."""
        settings = self._settings
        schedule = self._schedule(load)
        total = settings.total(load) if schedule is None else len(schedule)
        amount = settings.prompts or (_PROMPTS_FOR_A_DURATION if total is None else total)
        warm_samples = await self._warm_up(load, title)
        requests = await self._encode(amount if total is None else min(amount, total), f"{title}, prompts")
        samples, spent = await self._meter.measure(
            self._offer(
                itertools.islice(itertools.cycle(requests), total),
                title,
                total=total,
                clients=load.concurrency or 0,
                schedule=schedule,
                duration=settings.duration,
            )
        )
        run = outcome(samples, spent)
        run["notes"] = self.notes(samples, spent, is_reused=len(samples) > len(requests))
        if failed := sum(sample.failure is not None for sample in warm_samples):
            run["notes"].append(f"{failed} requests failed in the warm-up (counted as failures)")
        return run, warm_samples + samples

    async def _warm_up(self, load: Load, title: str) -> list[Sample]:
        amount = self._settings.warmup
        if amount == 0:
            return []
        requests = await self._encode(amount, f"{title}, prompts for the warm-up")
        clients = min(load.concurrency or amount, amount)
        return await self._offer(iter(requests), f"{title}, warm-up", clients=clients, total=amount)

    def _schedule(self, load: Load) -> list[float] | None:
        if load.rate is None:
            return None
        settings = self._settings
        requests = settings.total(load)
        return poisson_schedule(self._rng, load.rate, requests=requests, duration_seconds=settings.duration)

    async def _encode(self, amount: int, title: str) -> list[bytes]:
        """That many requests with prompts that were not sent before."""
        requests: list[bytes] = []
        settings, target = self._settings, self._server.target
        low, high = settings.prompt_id_range
        with Progress(title, total=amount, is_passing=True) as progress:
            for _ in range(amount):
                prompt = (
                    [self._rng.randrange(low, high) for _ in range(settings.input_tokens)]
                    if settings.prompt_ids
                    else await self._prompts.make()
                )
                requests.append(target.request("POST", self._workload.path, body=self._workload.body(prompt)))
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
            target, timeout = self._server.target, self._settings.timeout
            if schedule is None:
                until = None if duration is None else began + duration
                await closed_loop(
                    target, requests, concurrency=clients, until=until, timeout_seconds=timeout, on_reply=on_reply
                )
            else:
                times = [began + at for at in schedule]
                await open_loop(target, requests, schedule=times, timeout_seconds=timeout, on_reply=on_reply)
        return samples

    def notes(self, samples: list[Sample], spent: processes.Spent, *, is_reused: bool) -> list[str]:
        """What a reader must know to believe the numbers."""
        notes: list[str] = []
        share = spent.client_seconds / spent.wall_seconds
        if share > _BUSY_CLIENT_SHARE:
            notes.append(f"the client used {share:.0%} of a core: it may be the bottleneck, latencies are too long")
        wanted = self._settings.input_tokens
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
