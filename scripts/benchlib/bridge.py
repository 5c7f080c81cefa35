"""What the engine core's process costs, beside the scheduler's that does the work.

The core is started as the pool starts it (`python -m engine_bridge`) and spoken to by the API server's own client, so
nothing but the wire, the core and the engine takes part. Passes of so many requests follow each other, each timed by
the processes' own clocks: what grows with time shows from pass to pass.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil

from benchlib import processes, program
from benchlib.arguments import add_outcome, positive, words
from benchlib.errors import PoolError
from benchlib.plot import Lines, Panel
from benchlib.pool import environment
from benchlib.report import Progress, number, table
from engine_bridge.client import EngineClient
from engine_bridge.status import EngineRow, EngineState, make_descriptor
from engine_bridge.transport import make_context
from engine_bridge.wire import Embed, Failure, Generate, Output, Request, SamplingParams, pack_ids

_LOAD_SECONDS = 600.0
_STOP_SECONDS = 30.0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(prog="bench_bridge", description="CPU of the engine core and of the scheduler.")
    parser.add_argument("--model", required=True, help="for the engine: a directory or a hub id")
    parser.add_argument("--engine", default="sglang")
    parser.add_argument("--engine-args", type=words, default=(), metavar="'…'", help="arguments for the engine")
    parser.add_argument("--requests", type=positive, default=2000, metavar="N", help="per pass (default 2000)")
    parser.add_argument("--passes", type=positive, default=5, metavar="N", help="one after the other (default 5)")
    parser.add_argument("--concurrency", type=positive, default=64, metavar="N", help="default 64")
    parser.add_argument("--input-tokens", type=positive, default=32, metavar="N", help="per prompt (default 32)")
    parser.add_argument("--output-tokens", type=positive, default=1, metavar="N", help="per request (default 1)")
    parser.add_argument("--prompts", choices=("new", "same"), default="new", help="in each pass (same: prefix cache)")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    add_outcome(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""

    def has_failed(document: program.Document) -> bool:
        return any(each["failed"] for each in document["passes"])

    return program.run("bench_bridge", parse(arguments), bench, render=render, panels=panels, has_failed=has_failed)


async def bench(options: argparse.Namespace) -> program.Document:
    """All passes on one core."""
    async with _core(options) as core:
        capabilities = core.client.require()
        rng = random.Random(options.seed)
        await _pass(options, core, _prompts(options, rng, capabilities.vocab_size), "warm-up")
        same = _prompts(options, rng, capabilities.vocab_size)
        passes: list[dict[str, Any]] = []
        for turn in range(options.passes):
            fresh = options.prompts == "new"
            prompts = _prompts(options, rng, capabilities.vocab_size) if fresh else same
            passes.append(await _pass(options, core, prompts, f"pass {turn + 1}/{options.passes}"))
    return {"engine": capabilities.engine, "task": capabilities.task, "passes": passes}


@dataclass(slots=True)
class _Core:
    process: subprocess.Popen[bytes]
    client: EngineClient

    def roles(self) -> dict[int, str]:
        """The core; what it has started by its own titles; the client is this process."""
        roles = {self.process.pid: "core"}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            titles = " ".join(child.cmdline()[:1])
            roles[child.pid] = titles.removeprefix("sglang::") if titles.startswith("sglang::") else "other"
        return roles


@asynccontextmanager
async def _core(options: argparse.Namespace) -> AsyncGenerator[_Core]:
    """Started, loaded, and shaken hands with. Raises PoolError."""
    descriptor = make_descriptor()
    row = EngineRow.attach(descriptor)
    context = make_context()
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        address = f"ipc://{directory}/core"
        command = [sys.executable, "-m", "engine_bridge", "--engine", options.engine, "--model", options.model]
        command += ["--address", address, "--status-fd", str(descriptor), "--", *options.engine_args]
        log = Path(directory) / "log"
        process = _spawn(command, log, descriptor)
        client = EngineClient(context, f"api-0.{os.getpid()}")
        try:
            client.connect(address)
            deadline = perf_counter() + _LOAD_SECONDS
            while client.capabilities is None:
                if process.poll() is not None or row.state is EngineState.DEAD or perf_counter() > deadline:
                    raise PoolError(f"the engine core did not load: {log.read_text(errors='replace')[-600:]}")
                await asyncio.sleep(0.1)
            yield _Core(process, client)
        finally:
            client.disconnect("the measurement is over")
            context.term()
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, _STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _spawn(command: list[str], log: Path, descriptor: int) -> subprocess.Popen[bytes]:
    """As the supervisor does it: leading a session of its own, with the row's descriptor."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=output, pass_fds=(descriptor,), env=environment(), start_new_session=True
        )


def _prompts(options: argparse.Namespace, rng: random.Random, vocab_size: int) -> list[bytes]:
    low = min(1000, vocab_size // 2)
    return [
        pack_ids([rng.randrange(low, vocab_size) for _ in range(options.input_tokens)]) for _ in range(options.requests)
    ]


async def _pass(options: argparse.Namespace, core: _Core, prompts: list[bytes], title: str) -> dict[str, Any]:
    client = core.client
    embeds = client.require().task == "embed"
    params = SamplingParams(max_tokens=options.output_tokens, temperature=0.0, ignore_eos=True)
    waiting = iter(prompts)
    failed = tokens = 0
    roles = core.roles()

    async def work(progress: Progress) -> None:
        nonlocal failed, tokens
        for prompt in waiting:
            async with client.open() as submission:
                request_id = submission.new_id()
                request: Request = Embed(request_id, prompt) if embeds else Generate(request_id, prompt, params)
                submission.submit([request])
                ended = False
                while not ended:
                    for answer in await submission.receive():
                        is_output = isinstance(answer, Output)
                        tokens += len(answer.new_token_ids) // 4 if is_output else 0
                        failed += isinstance(answer, Failure)
                        ended = not is_output or answer.finish_reason is not None
            progress.advance()

    before = processes.read(roles)
    with Progress(title, total=len(prompts)) as progress:
        await asyncio.gather(*[work(progress) for _ in range(options.concurrency)])
    spent = processes.spent(before, processes.read(roles), roles)
    return {
        "requests": len(prompts),
        "failed": failed,
        "output_tokens": tokens,
        "requests_per_second": len(prompts) / spent.wall_seconds,
        "cpu_seconds_per_request": {role: used / len(prompts) for role, used in spent.server_seconds.items()},
        "client_cpu_seconds_per_request": spent.client_seconds / len(prompts),
        "core_rss_bytes": psutil.Process(core.process.pid).memory_info().rss,
    }


def render(document: program.Document) -> str:
    """A row a pass."""
    settings = document["settings"]
    header = ["pass", "requests/s", "core, µs/request", "scheduler, µs/request", "core, µs/token", "core, MB RSS"]
    rows: list[list[str]] = []
    for turn, each in enumerate(document["passes"], 1):
        costs = each["cpu_seconds_per_request"]
        core = costs["core"] * 1e6
        per_token = core * each["requests"] / each["output_tokens"] if each["output_tokens"] else None
        values = [each["requests_per_second"], core, costs.get("scheduler", 0.0) * 1e6, per_token]
        rows.append([str(turn), *map(number, values), number(each["core_rss_bytes"] / 1e6)])
    what = f"{document['engine']}, {settings['concurrency']} at a time, {settings['input_tokens']} tokens in, "
    what += f"{settings['output_tokens']} out, {settings['prompts']} prompts, {settings['requests']} requests a pass"
    return f"{what}\n\n{table(header, rows)}"


def panels(document: program.Document) -> list[Panel]:
    """CPU per request over the passes."""
    roles = document["passes"][0]["cpu_seconds_per_request"]
    series = {
        role: [(turn, each["cpu_seconds_per_request"][role] * 1e6) for turn, each in enumerate(document["passes"], 1)]
        for role in roles
    }
    return [Lines(title="CPU per request", x_label="pass", y_label="µs", series=series)]
