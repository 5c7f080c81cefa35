"""A real pool as a test has it: started by its command line on a free port, stopped and checked at the end."""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
import openai
import psutil

from tests.event_streams import checking_client

START_SECONDS = 40.0
STOP_SECONDS = 20.0

T = TypeVar("T")

ECHO_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""A chat template that adds nothing: with `--mode echo`, the sim answers exactly what it was told."""


def quiet_port() -> int:
    """A free port below those that the kernel gives to outgoing connections: it stays free while nobody listens, and
    who tries to connect to it again and again does not meet itself."""
    for port in random.sample(range(15_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def wait_for(condition: Callable[[], T | None], seconds: float = 10.0, what: str = "the condition") -> T:
    """Poll until the condition gives something true, and return that. The tests' only way to wait for time."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds:.0f} s")
        time.sleep(0.01)


class Pool:
    """One running pool. `url` is its address; `log` what it has written so far."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, output: Path) -> None:
        self.process = process
        self.url = url
        self._output = output
        self.client = checking_client(url)
        self._openai_client = checking_client(url)
        self.openai = openai.OpenAI(
            base_url=url + "/v1",
            api_key="none",
            max_retries=0,
            timeout=30.0,
            http_client=cast(Any, self._openai_client),
        )

    @property
    def log(self) -> str:
        return self._output.read_text(errors="replace")

    def post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        return self.client.post(path, json=body, headers=headers)

    def get(self, path: str) -> httpx.Response:
        return self.client.get(path)

    def pool(self) -> dict[str, Any]:
        """GET /pool, on a connection of its own."""
        return httpx.get(self.url + "/pool", timeout=10.0).json()

    def engine(self) -> dict[str, Any]:
        return self.pool()["engine"]

    def worker_pids(self) -> list[int]:
        return [process["pid"] for process in self.pool()["processes"]]

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait_idle(self, seconds: float = 10.0) -> None:
        """Until the engine has no work left."""
        wait_for(lambda: _is_idle(self.engine()), seconds, "an idle engine")

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels, in one scrape."""
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            found = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? ([\d.e+-]+|NaN|\+Inf)", line)
            if found is None or found.group(1) != f"apiserver:{name}":
                continue
            have = dict(re.findall(r'(\w+)="([^"]*)"', found.group(2) or ""))
            if all(have.get(key) == value for key, value in labels.items()):
                total += float(found.group(3))
        return total

    def close_clients(self) -> None:
        self.client.close()
        self.openai.close()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal the supervisor and return its exit code."""
        self.close_clients()
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)


def _is_idle(engine: dict[str, Any]) -> bool:
    return engine["running"] == 0 and engine["waiting"] == 0


@contextlib.contextmanager
def running_pool(
    output: Path,
    *flags: str,
    engine: Sequence[str] = (),
    model: str = "sim",
    ready: bool = True,
    inside: Sequence[str] = (),
) -> Iterator[Pool]:
    """`apiserver serve` with these flags on a free port of the loopback; `engine` stands after `--`.

    `ready=False` gives the pool as soon as it listens; `inside` is a command that becomes what follows it, elsewhere.
    Whatever the test did, no process is left behind.
    """
    command = [*inside, sys.executable, "-m", "apiserver", "serve", model, "--port", "0", *flags]
    if model == "sim":
        command += ["--engine", "sim"]
    if engine:
        command += ["--", *engine]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with output.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment)
    pool: Pool | None = None
    try:
        url = wait_for(lambda: _url(process, output), START_SECONDS, "the pool's address")
        pool = Pool(process, url, output)
        if ready:
            wait_for(lambda: "Try it:" in _said(process, output), START_SECONDS, "a ready pool")
        yield pool
    finally:
        if pool is not None:
            pool.close_clients()
        _end(process)


def _said(process: subprocess.Popen[bytes], output: Path) -> str:
    """What it has written so far; it must not have ended."""
    text = output.read_text(errors="replace")
    if process.poll() is not None:
        raise AssertionError(f"the pool ended with {process.returncode}:\n{text}")
    return text


def _url(process: subprocess.Popen[bytes], output: Path) -> str | None:
    found = re.search(r"listening on (\S+)", output.read_text(errors="replace"))
    if found is None:
        _said(process, output)  # for its complaint
        return None
    return found.group(1)  # also if it has ended meanwhile: that may be what the test wants


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
