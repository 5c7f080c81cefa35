"""Inputs by their seed, in batches, to a pool of our own on each kind of engine; a table, and an exit code."""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import uvloop
from benchlib.pool import PoolSpec, started
from benchlib.report import provenance, provenance_line, table

from fuzzlib.bodies import Taken, taken
from fuzzlib.inputs import Input
from fuzzlib.malformed import KINDS
from fuzzlib.mutations import mutated
from fuzzlib.state import State, document_of, faults, idle
from fuzzlib.talk import Said, talk

_BATCH = 250
_JSON_SHARE = 0.6
_WARM_SHARE = 0.3  # of the inputs, until memory is looked at for the first time
_CLASSES = ("2xx", "4xx", "5xx", "closed", "waits", "hung")
_MIB = 1 << 20


@dataclass
class Found:
    """What a run has seen."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    findings: list[str] = field(default_factory=list[str])
    memory: list[str] = field(default_factory=list[str])


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    origin = provenance()
    found = uvloop.run(_fuzz(options))
    print(_table(found))
    print("\n".join(found.memory))
    print(f"\nseed {options.seed}; {provenance_line(origin)}")
    for finding in found.findings:
        print(f"FOUND {finding}")
    return 1 if found.findings else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="over all tasks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tasks", default="generate,embed", help="what the simulated engines do, one after the other")
    parser.add_argument("--api-server-count", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument(
        "--most-growth-mib", type=int, default=64, help="of one process, from the first third to the end"
    )
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="where inputs go that made one")
    return parser.parse_args(arguments)


async def _fuzz(options: argparse.Namespace) -> Found:
    found = Found()
    tasks = options.tasks.split(",")
    for task in tasks:
        spec = PoolSpec(
            model="sim",
            api_server_count=options.api_server_count,
            flags=("--max-model-len", "512", "--tool-call-parser", "hermes", "--max-body-bytes", str(4 * _MIB)),
            engine_arguments=("--task", task, "--step-ms", "0.1"),
        )
        async with started(spec) as pool:
            await _Run(pool.url, task, options, found).all(options.inputs // len(tasks))
            traces = [line for _, line in pool.lines if "Traceback" in line or "ERROR" in line]
        if traces:
            found.findings.append(f"{task}: the log has {len(traces)} errors, such as: {traces[0]}")
    return found


class _Run:
    """One pool's part."""

    def __init__(self, url: str, task: str, options: argparse.Namespace, found: Found) -> None:
        self._url, self._task, self._options, self._found = url, task, options, found
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._random = Random(f"{options.seed} {task}")

    async def all(self, inputs: int) -> None:
        routes = taken(await document_of(self._url, "/openapi.json"))
        before = warm = await idle(self._url)
        sent = 0
        while sent < inputs:
            batch = [self._input(routes) for _ in range(min(_BATCH, inputs - sent))]
            await self._batch(batch)
            sent += len(batch)
            state = await idle(self._url)
            wrong = list(faults(before, state))
            if wrong:
                self._report("; ".join(wrong), batch)
                return
            if sent <= inputs * _WARM_SHARE:
                warm = state
            print(f"{self._task}: {sent} of {inputs}", file=sys.stderr)
        self._weigh(warm, await idle(self._url))

    def _input(self, routes: list[Taken]) -> Input:
        random = self._random
        if random.random() < _JSON_SHARE:
            return mutated(random, random.choice(routes))
        return random.choice(KINDS)(random, routes)

    async def _batch(self, batch: list[Input]) -> None:
        waiting = iter(batch)

        async def sender() -> None:
            for one in waiting:
                self._note(one, await talk(self._host, self._port, one))

        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.concurrency):
                group.create_task(sender())

    def _note(self, one: Input, said: Said) -> None:
        for status in said.statuses:
            self._found.counts[one.kind, f"{status // 100}xx"] += 1
        if not said.statuses or said.ended == "hung":
            self._found.counts[one.kind, said.ended] += 1
        self._found.counts[one.kind, "inputs"] += 1
        if said.fault:
            self._report(f"{one.kind} {one.path}: {said.fault}", [one])

    def _report(self, what: str, batch: list[Input]) -> None:
        """With the bytes that did it, a file a connection."""
        folder: Path = self._options.findings
        folder.mkdir(parents=True, exist_ok=True)
        number = len(self._found.findings)
        for position, one in enumerate(batch):
            (folder / f"{self._task}-{number}-{position}.bin").write_bytes(one.data)
        self._found.findings.append(f"{self._task}: {what} ({folder}/{self._task}-{number}-*.bin)")

    def _weigh(self, warm: State, end: State) -> None:
        """Memory at the end against that when the pool was warm."""
        most = self._options.most_growth_mib
        for name, bytes_at_end in end.uss.items():
            growth = (bytes_at_end - warm.uss[name]) / _MIB
            self._found.memory.append(f"{self._task} {name}: {warm.uss[name] / _MIB:.1f} MiB, {growth:+.1f} at the end")
            if growth > most:
                self._report(f"{name} grew by {growth:.1f} MiB, more than {most}", [])


def _table(found: Found) -> str:
    kinds = sorted({kind for kind, _ in found.counts})
    rows = [[kind, *(str(found.counts[kind, name]) for name in ("inputs", *_CLASSES))] for kind in kinds]
    total = [str(sum(found.counts[kind, name] for kind in kinds)) for name in ("inputs", *_CLASSES)]
    return table(("kind", "inputs", *_CLASSES), [*rows, ["all", *total]])
