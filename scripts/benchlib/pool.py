"""A pool of our own for the time of a measurement: started by its command line on a free port, stopped by SIGTERM."""

import argparse
import asyncio
import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from benchlib.client import Target
from benchlib.errors import PoolError

ROOT = Path(__file__).parents[2]
"""The checkout that these scripts lie in: it is what they start, installed or not."""

_START_SECONDS = 300.0  # a model may have to be fetched first
_STOP_SECONDS = 60.0
_LAST_LINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSpec:
    """What to say to `apiserver serve`."""

    model: str
    api_server_count: int | None = None
    tokenizer: Path | None = None
    flags: tuple[str, ...] = ()
    engine_arguments: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        options: argparse.Namespace,
        *,
        api_server_count: int | None,
        task: str | None = None,
        more_flags: tuple[str, ...] = (),
    ) -> "PoolSpec":
        """From the options of `arguments.add_server`; `task` is said to the simulated engine, which can do both."""
        from benchlib.tokenizer_files import find_tokenizer  # it may have to be made first

        model = options.model or options.default_model
        task_arguments = ("--task", task) if model == "sim" and task is not None else ()
        return cls(
            model=model,
            api_server_count=api_server_count,
            tokenizer=find_tokenizer(options.tokenizer) if options.tokenizer else None,
            flags=(*more_flags, *options.pool_flags),
            engine_arguments=(*task_arguments, *options.engine_args),
        )

    def arguments(self) -> list[str]:
        """All that stands after `apiserver`."""
        said = ["serve", self.model, "--port", "0"]
        if self.model == "sim":
            said += ["--engine", "sim"]
        if self.api_server_count is not None:
            said += ["--api-server-count", str(self.api_server_count)]
        if self.tokenizer is not None:
            said += ["--tokenizer", str(self.tokenizer)]
        said += self.flags
        return [*said, "--", *self.engine_arguments] if self.engine_arguments else said


class OwnPool:
    """A running pool; every line it has written has the time (perf_counter's) at which it came."""

    def __init__(self, process: asyncio.subprocess.Process, started_at: float) -> None:
        self._process = process
        self.started_at = started_at
        self.lines: list[tuple[float, str]] = []
        self.url = ""
        self._news = asyncio.Event()

    @property
    def pid(self) -> int:
        """The supervisor's."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    async def read(self) -> None:
        """Take down what it writes, until it has ended."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self.lines.append((perf_counter(), line.decode(errors="replace").rstrip()))
            self._news.set()
        self._news.set()

    async def wait_for_line(self, pattern: str) -> tuple[float, re.Match[str]]:
        """The first line that has it, and when it came. Raises PoolError if the pool ends, or takes too long."""
        seen = 0
        try:
            async with asyncio.timeout(_START_SECONDS):
                while True:
                    for at, line in self.lines[seen:]:
                        if (match := re.search(pattern, line)) is not None:
                            return at, match
                    seen = len(self.lines)
                    if self._process.returncode is not None:
                        raise PoolError(f"the pool ended with status {self._process.returncode}: {self.last_words()}")
                    self._news.clear()
                    with contextlib.suppress(TimeoutError):  # its end is no line
                        await asyncio.wait_for(self._news.wait(), 0.2)
        except TimeoutError:
            raise PoolError(f"the pool was not ready after {_START_SECONDS:.0f} s: {self.last_words()}") from None

    def last_words(self) -> str:
        return " / ".join(deque((line for _, line in self.lines if line.strip()), maxlen=_LAST_LINES)) or "(nothing)"

    async def stop(self) -> None:
        """SIGTERM, and wait; what does not obey is killed and said."""
        process = self._process
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise PoolError(f"the pool did not stop within {_STOP_SECONDS:.0f} s: {self.last_words()}") from None
        except asyncio.CancelledError:
            process.send_signal(signal.SIGTERM)  # the second one: at once
            await process.wait()
            raise


@dataclass(frozen=True, slots=True)
class Server:
    """What is measured: a pool of ours, or whatever runs at a URL."""

    target: Target
    root_pid: int | None
    own: OwnPool | None = None
    seconds_to_ready: float | None = None


@asynccontextmanager
async def started(spec: PoolSpec, *, is_ready: bool = True) -> AsyncGenerator[OwnPool]:
    """The pool while the block lasts; with `is_ready=False` as soon as it listens. Raises PoolError."""
    began = perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "apiserver", *spec.arguments()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(),
    )
    pool = OwnPool(process, began)
    reading = asyncio.create_task(pool.read())
    try:
        _, match = await pool.wait_for_line(r"listening on (\S+)")
        pool.url = match[1]
        if is_ready:
            await pool.wait_for_line("Try it:")
        yield pool
    finally:
        await pool.stop()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@asynccontextmanager
async def server(options: argparse.Namespace, spec: Callable[[], PoolSpec]) -> AsyncGenerator[Server]:
    """The server at `--url`, or else a pool of ours as `spec` says."""
    if options.url is not None:
        yield Server(Target.parse(options.url, api_key=options.api_key), options.server_pid)
        return
    async with started(spec()) as pool:
        ready_at, _ = await pool.wait_for_line("Try it:")
        yield Server(Target.parse(pool.url, api_key=options.api_key), pool.pid, pool, ready_at - pool.started_at)


def environment() -> Mapping[str, str]:
    """Ours, with this checkout's packages first."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths)}


@dataclass(frozen=True, slots=True)
class ServeFlags:
    """What this checkout's `apiserver serve` understands."""

    help_text: str

    def has(self, flag: str, choice: str | None = None) -> bool:
        """Whether there is such a flag and, if it names its choices, whether this is one of them."""
        match = re.search(rf"{re.escape(flag)}(?![\w-])(?:[ =]\{{([^}}]*)\}})?", self.help_text)
        if match is None:
            return False
        return choice is None or match[1] is None or choice in match[1].replace(" ", "").replace("\n", "").split(",")


@functools.cache
def serve_flags() -> ServeFlags:
    """Ask `apiserver serve --help`, once."""
    command = [sys.executable, "-m", "apiserver", "serve", "--help"]
    # Wide, or argparse breaks lists of choices.
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**environment(), "COLUMNS": "500"}
    )
    if result.returncode != 0:
        raise PoolError(f"apiserver serve --help ended with status {result.returncode}: {result.stderr[-300:]}")
    return ServeFlags(result.stdout)
