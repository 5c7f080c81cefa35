"""A pool under trial: how it is started, what is done to it, and what must be true of it at the end."""

import asyncio
import contextlib
import json
import re
import socket
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from benchlib import pool
from benchlib.pool import ROOT, OwnPool, PoolSpec

from chaoslib import victims
from chaoslib.ask import Ask
from chaoslib.client import Client
from chaoslib.findings import Findings
from chaoslib.generating import fatal
from chaoslib.program import Program, start
from chaoslib.words import ECHO_TEMPLATE, FAULT_ARGUMENTS

KEYS = ("alice", "bob")
_FLAGS = (
    *("--api-key", *KEYS, "--max-inflight-per-key", "14"),
    *("--max-inflight", "40", "--max-queued-requests", "30", "--max-queued-tokens", "60000", "--request-timeout", "40"),
    *("--api-server-timeout", "4", "--drain-timeout", "10", "--send-timeout", "15"),
)
_ENGINE_FLAGS = (
    *("--engine-restart-limit", "10000", "--engine-restart-window", "12"),
    *("--engine-heartbeat-timeout", "4", "--engine-stall-timeout", "4"),
)
_ECHO = ("--mode", "echo", "--step-ms", "4", "--tokens-per-step", "4", *FAULT_ARGUMENTS)
_CONTEXT = "60000"
_SETTLE_SECONDS = 60.0
_LOOK_SECONDS = 5.0
_GAUGES = re.compile(
    r"^apiserver:(num_requests_running|num_requests_waiting|admitted_requests|queued_requests|queued_tokens|"
    r"key_requests_active|connections|http_requests_active)(\{[^}]*\})? ([\d.e+-]+)$",
    re.MULTILINE,
)
_ASKING = {"http_requests_active": 1.0, "connections": 1.0}  # the scrape itself


class Site:
    """See the module. Implements `faults.Place`."""

    def __init__(self, name: str, own: OwnPool, seen: Findings, core: "Core | None") -> None:
        self.name = name
        self.supervisor = own.pid
        self.doomed = victims.Doomed()
        host, _, port = own.url.removeprefix("http://").rpartition(":")
        self.address = host, int(port)
        self._own = own
        self._seen = seen
        self._core = core
        self._disturbances: set[asyncio.Task[Any]] = set()

    def client(self, rng: Random, key: str = KEYS[0]) -> Client:
        return Client(self.name, self.address, key, rng, self._seen, self.doomed)

    # ---- faults.Place ----

    def engine_pids(self) -> list[int]:
        return [self._core.pid] if self._core is not None else victims.engines(self.supervisor)

    async def restart_engine(self) -> None:
        """Ours to do only where the core is on its own."""
        if self._core is not None:
            await self._core.restart()

    async def disturb(self, trouble: str) -> None:
        self._disturbances.add(asyncio.create_task(self._ask_once(fatal(trouble, f"[{self.name} {monotonic()}]"))))

    async def _ask_once(self, ask: Ask) -> None:
        client = self.client(Random(0))
        await client.do(ask)
        await client.close()

    async def network(self, word: str) -> None:
        assert self._core is not None
        await self._core.network(word)

    # ---- looking ----

    async def look(self, path: str) -> str | None:
        """GET on a connection of its own, like a probe; None if there is no answer."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                reader, writer = await asyncio.open_connection(*self.address)
                head = (
                    f"GET {path} HTTP/1.1\r\nHost: pool\r\nAuthorization: Bearer {KEYS[0]}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode())
                answer = await reader.read()
        except OSError:  # a timeout too
            return None
        finally:
            if writer is not None:
                writer.close()
        head_bytes, _, body = answer.partition(b"\r\n\r\n")
        return body.decode() if head_bytes.startswith(b"HTTP/1.1 200") else None

    async def pool_document(self) -> Any:
        text = await self.look("/pool")
        return None if text is None else json.loads(text)

    async def is_whole(self) -> bool:
        """Every API server serves, and the engine does."""
        document = await self.pool_document()
        if document is None or document["engine"]["state"] != "ready":
            return False
        ready = sum(process["state"] == "ready" for process in document["processes"])
        return ready == document["api_server_count"] == len(document["processes"])

    async def settle(self) -> None:
        """Until it is whole again; a finding if it does not become so."""
        until = monotonic() + _SETTLE_SECONDS
        while not await self.is_whole():
            if monotonic() > until:
                self._seen.found(
                    self.name, f"not whole {_SETTLE_SECONDS:.0f} s after the last fault: {await self.pool_document()}"
                )
                return
            await asyncio.sleep(0.2)

    async def is_quiet(self) -> str | None:
        """None, or which counters have not come back to zero."""
        document, metrics = await self.pool_document(), await self.look("/metrics")
        if document is None or metrics is None:
            return "no answer"
        engine = document["engine"]
        loud = [f"engine {name} {engine[name]}" for name in ("running", "waiting") if engine[name]]
        in_flight = sum(process["in_flight"] for process in document["processes"])
        loud += [f"in_flight {in_flight}"] if in_flight != 1 else []
        sums: dict[str, float] = {}
        for name, _, value in _GAUGES.findall(metrics):
            sums[name] = sums.get(name, 0.0) + float(value)
        loud += [f"{name} {value:g}" for name, value in sums.items() if value != _ASKING.get(name, 0.0)]
        return ", ".join(loud) or None

    async def quieten(self, seconds: float = 15.0) -> None:
        """Every counter returns to zero; a finding else."""
        until = monotonic() + seconds
        while (loud := await self.is_quiet()) is not None:
            if monotonic() > until:
                self._seen.found(self.name, f"counters that do not return to zero: {loud}")
                return
            await asyncio.sleep(0.2)

    def keep_log(self, directory: Path) -> None:
        """All that the pool has written, with the seconds since the run began."""
        lines = [f"{at - self._seen.began:8.2f} {line}\n" for at, line in self._own.lines]
        (directory / f"{self.name}.log").write_text("".join(lines), encoding="utf-8")

    def check_log(self) -> None:
        """No API server, supervisor or core of ours may have met what it did not expect."""
        lines = [line for _, line in self._own.lines]
        for number, line in enumerate(lines):
            if "Traceback (most recent call last)" in line or "Task exception was never retrieved" in line:
                said = " | ".join(lines[max(0, number - 2) : number + 40])
                self._seen.found(self.name, f"the log has an exception: {said[:1500]}")
        if self._own.exit_code is not None:
            self._seen.found(
                self.name, f"the pool ended by itself, with {self._own.exit_code}: {self._own.last_words()}"
            )


class Core:
    """An engine core on its own, behind a forwarder; whoever kills it restarts it, as a service manager would."""

    def __init__(
        self, program: Program, arguments: tuple[str, ...], address: str, forwarder: Process, port: int
    ) -> None:
        self._program = program
        self._arguments = arguments
        self._address = address
        self._forwarder = forwarder
        self._speaking = asyncio.Lock()
        self.port = port

    @property
    def pid(self) -> int:
        return self._program.pid

    async def restart(self) -> None:
        await self._program.stop()
        self._program = await start("engine", "sim", "--engine", "sim", "--listen", self._address, *self._arguments)
        await self._program.said(r"listening on (\S+)")

    async def network(self, word: str) -> None:
        assert self._forwarder.stdin is not None
        assert self._forwarder.stdout is not None
        async with self._speaking:
            self._forwarder.stdin.write(word.encode() + b"\n")
            await self._forwarder.stdout.readline()

    async def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._forwarder.kill()
        await self._forwarder.wait()
        await self._program.stop()


async def _core(delay_seconds: float) -> Core:
    arguments = ("--", "--max-model-len", _CONTEXT, *_ECHO)
    program = await start("engine", "sim", "--engine", "sim", "--listen", "tcp://127.0.0.1:0", *arguments)
    address = await program.said(r"listening on (\S+)")
    command = (
        "-m",
        "tests.forwarder",
        "127.0.0.1",
        "127.0.0.1",
        address.rpartition(":")[2],
        str(delay_seconds),
        "0.005",
    )
    forwarder = await asyncio.create_subprocess_exec(
        program.python, *command, stdin=PIPE, stdout=PIPE, cwd=ROOT, env=pool.environment()
    )
    assert forwarder.stdout is not None
    line = (await forwarder.stdout.readline()).decode()
    return Core(program, arguments, address, forwarder, int(line.split()[-1]))


@asynccontextmanager
async def running(name: str, seen: Findings, *, api_server_count: int, logs: Path | None) -> AsyncGenerator[Site]:
    """A site by its name: generate, embed or remote. At the end it is stopped, and that is looked at too."""
    core = await _core(0.01) if name == "remote" else None
    flags = (*_FLAGS, "--max-model-len", "2000" if name == "embed" else _CONTEXT)
    engine: tuple[str, ...] = ()
    if name == "embed":
        engine = ("--task", "embed", "--step-ms", "4")
    else:
        flags += ("--chat-template", ECHO_TEMPLATE, "--tool-call-parser", "hermes")
    if core is not None:
        flags += ("--engine-address", f"tcp://127.0.0.1:{core.port}", "--engine-link-timeout", "4")
    else:
        flags += _ENGINE_FLAGS
        engine = engine or _ECHO
    spec = PoolSpec(model="sim", api_server_count=api_server_count, flags=flags, engine_arguments=engine)
    try:
        async with pool.started(spec) as own:
            site = Site(name, own, seen, core)
            yield site
            site.check_log()
        if logs is not None:
            site.keep_log(logs)
        if own.exit_code != 0:
            seen.found(name, f"SIGTERM ended the pool with {own.exit_code}: {own.last_words()}")
        if not _is_free(site.address):
            seen.found(name, f"port {site.address[1]} is not free after the end")
    finally:
        if core is not None:
            await core.stop()


def _is_free(address: tuple[str, int]) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that were just closed do not count
        try:
            sock.bind(address)
        except OSError:
            return False
    return True
