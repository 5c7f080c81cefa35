"""An engine core on its own, and the network before it, as processes."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from tests.pool import START_SECONDS, STOP_SECONDS, quiet_port, wait_for


class Engine:
    """`apiserver engine`; may be killed and started again, at the same address."""

    def __init__(
        self, output: Path, flags: Sequence[str], engine: Sequence[str], inside: Sequence[str], model: str
    ) -> None:
        self._output = output
        self._flags = flags
        self._engine = engine
        self._inside = inside
        self._model = ("sim", "--engine", "sim") if model == "sim" else (model,)
        self.address = f"tcp://127.0.0.1:{quiet_port()}"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [*self._inside, sys.executable, "-m", "apiserver", "engine", *self._model]
        command += ["--listen", self.address, *self._flags, "--", *self._engine]
        with self._output.open("wb") as sink:
            process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)

        def address() -> str | None:
            found = re.search(r"listening on (\S+)", self.log)
            assert found is not None or process.poll() is None, self.log
            return found.group(1) if found is not None else None

        self.address = wait_for(address, START_SECONDS, "the engine's address")
        return process

    @property
    def log(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def restart(self, *engine: str) -> None:
        """Another incarnation, maybe with something else after `--`; the one before must be dead."""
        self._engine = engine or self._engine
        self.process = self._start()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


@contextlib.contextmanager
def running_engine(
    output: Path, *flags: str, engine: Sequence[str] = (), inside: Sequence[str] = (), model: str = "sim"
) -> Iterator[Engine]:
    """An engine core alone on a free port; `engine` stands after `--`, `inside` before everything."""
    running = Engine(output, flags, engine, inside, model)
    try:
        yield running
    finally:
        running.stop()


class Network:
    """A forwarder (tests/forwarder.py) in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], words: IO[bytes], port: int) -> None:
        self._process = process
        self._words = words
        self.port = port

    def say(self, word: str) -> str:
        """cut, heal or reset; returns what it says to that."""
        self._words.write(word.encode() + b"\n")
        self._words.flush()
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode()


@contextlib.contextmanager
def running_network(
    port: int, *, host: str = "127.0.0.1", delay_seconds: float = 0.0, loss: float = 0.0, inside: Sequence[str] = ()
) -> Iterator[Network]:
    """What connects to its port, on `host`, comes to `port` on the loopback of where it runs."""
    command = [
        *inside,
        sys.executable,
        "-m",
        "tests.forwarder",
        host,
        "127.0.0.1",
        str(port),
        str(delay_seconds),
        str(loss),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline().decode()
            yield Network(process, process.stdin, int(line.split()[-1]))
        finally:
            process.kill()


def make_keys(directory: Path, *names: str) -> Path:
    """By the command."""
    command = [sys.executable, "-m", "apiserver", "keys", str(directory), "--client", *names]
    subprocess.run(command, check=True, capture_output=True, timeout=START_SECONDS, env=dict(os.environ))
    return directory
